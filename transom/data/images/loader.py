"""From images to batches: splits, order, augmentation, slices."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

from transom.config.data import Data, Digits, ImageFiles
from transom.config.training import Augmentation
from transom.config.vision import ImageClassifier
from transom.data.batch import ImageBatch, Indices
from transom.data.images.augmentation import Augmenter
from transom.data.images.digits import load_digits
from transom.data.images.images import Images, read_images
from transom.data.labeled.classes import numbered
from transom.data.sampler import WHOLE, Slicing, draws, walk
from transom.data.split import Splits, read_splits, split_off
from transom.data.text.text import expanded

MEASURED = 10_000
"""Most images that the channels' mean and deviation are taken from."""


def load_images(data: Data, base: Path, model: ImageClassifier, valid_share: float) -> Splits[Images]:
    """Read or generate the images of a recipe.

    Args:
        data: the recipe's data section.
        base: folder that ``data.root`` is relative to.
        model: the recipe's, whose size and channels they are brought to.
        valid_share: part that is split off where no validation images are named.

    Raises:
        DataError: an image cannot be read, or there is too little to split.
    """
    root = base / expanded(data.root)

    def read(files: ImageFiles) -> Images:
        return read_images(root / expanded(files.images), model.image_size, model.channels)

    def split(images: Images) -> tuple[Images, Images]:
        return split_off(images, images.digests, valid_share, "images")

    if isinstance(data.generate, Digits):
        digits, test = load_digits(data.generate, model.image_size, model.channels)
        return Splits(*split(digits), test)
    return read_splits(data, read, split)


def pixel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, from 0 to 1; a channel of one number has deviation 1."""
    step = -(-len(images) // MEASURED)
    total, squares, n = torch.zeros(()), torch.zeros(()), 0
    for samples in np.array_split(np.arange(0, len(images), step), -(-len(images) // step // 500) or 1):
        pixels = images.load(samples.tolist()).double() / 255
        total, squares, n = total + pixels.sum((0, 2, 3)), squares + pixels.square().sum((0, 2, 3)), n + pixels[:, 0].numel()
    mean = total / n
    std = (squares / n - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(torch.where(std > 1e-4, std, 1.0).tolist())


def image_batches(images: Images, labels: Sequence[int], batch_images: int) -> Iterator[ImageBatch]:
    """Batch images as they are, for reading each once."""
    for start in range(0, len(images), batch_images):
        samples = range(start, min(start + batch_images, len(images)))
        yield ImageBatch(images.load(samples) / 255, torch.tensor([labels[i] for i in samples]), tuple(samples))


def image_fingerprint(*parts: Images) -> str:
    """Hash the files and classes of images in their order, so that a run can tell whether its data are still the same."""
    total = blake2b(digest_size=16)
    for images in parts:
        for digest, label in zip(images.digests, images.labels, strict=True):
            total.update(f"{digest} {label}\n".encode())
        total.update(b"\0")
    return total.hexdigest()


class ImageLoader:
    """Training batches of images without end, from any position, changed in each epoch anew.

    A position is the number of images read since the start of training, over all shards: the whole state of the loader.

    Attributes:
        images: all of them.
        labels: number of each one's class.
        n_samples: images: an epoch.
    """

    def __init__(
        self,
        images: Images,
        classes: Sequence[str],
        *,
        batch_images: int,
        seed: int,
        augmentation: Augmentation,
        slicing: Slicing = WHOLE,
    ) -> None:
        """Number the classes.

        Args:
            images: each with its class.
            classes: by number.
            batch_images: most images of a batch, over all shards and slices; an epoch's batches differ by one at most.
            seed: of order and augmentation.
            augmentation: what is changed.
            slicing: of every batch.

        Raises:
            DataError: an image is of an unknown class.
        """
        self.images, self.n_samples = images, len(images)
        self.labels = numbered(images.labels, classes, images)
        self._augmenter = Augmenter(augmentation, seed)
        self._batch_images, self._seed, self._slicing = batch_images, seed, slicing

    def batches_from(self, position: int) -> Iterator[tuple[int, list[ImageBatch]]]:
        """Yield each batch, as slices, with the position behind it: what a checkpoint stores to go on from there."""
        for end, epoch, batch in walk(position, self.n_samples, self._plan):
            partner = dict(zip(batch.tolist(), np.roll(batch, 1).tolist(), strict=True))
            yield end, [self._batch(part.tolist(), partner, epoch) for part in self._slicing.of(batch)]

    def _plan(self, epoch: int) -> list[Indices]:
        order = np.argsort(draws(self.n_samples, self._seed, epoch)[0], kind="stable")
        return np.array_split(order, -(-len(order) // self._batch_images))

    def _batch(self, rows: list[int], partner: dict[int, int], epoch: int) -> ImageBatch:
        """Change a slice's images, and mix each with another of its batch, wherever that one is dealt out to."""
        augmenter, labels = self._augmenter, torch.tensor([self.labels[i] for i in rows])
        if not augmenter.mixes:
            return ImageBatch(augmenter.changed(self.images.load(rows) / 255, epoch, rows), labels, tuple(rows))
        others = [partner[row] for row in rows]
        wanted = list(dict.fromkeys([*rows, *others]))
        changed = augmenter.changed(self.images.load(wanted) / 255, epoch, wanted)
        place = {sample: number for number, sample in enumerate(wanted)}
        own, theirs = changed[[place[row] for row in rows]], changed[[place[row] for row in others]]
        pixels, mixed = augmenter.mixed(own, theirs, [self.labels[i] for i in others], epoch, rows)
        return ImageBatch(pixels, labels, tuple(rows), mixed)
