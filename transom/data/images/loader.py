"""Loading of images: splits, ordering, augmentation and batching."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transom.config.data import DataConfig, DigitsConfig
from transom.config.training import ImageAugmentationConfig
from transom.config.vision import ImageClassifierConfig
from transom.data.batch import ImageBatch, Indices
from transom.data.images.augmentation import Augmenter
from transom.data.images.digits import load_digits
from transom.data.images.image_files import Images, list_splits, read_images
from transom.data.labeled.class_labels import encode_labels
from transom.data.sampler import FULL_BATCH, MicroBatching, iterate_epochs, stateless_uniform
from transom.data.split import Splits, holdout, read_splits
from transom.data.text.text_io import expand_path
from transom.errors import DataError

MAX_STATISTICS_IMAGES = 10_000
"""Maximum number of images from which the mean and standard deviation of each channel are estimated."""


def load_images(
    data: DataConfig, base: Path, model: ImageClassifierConfig, valid_fraction: float, skip_damaged: bool = False
) -> Splits[Images]:
    """Read or generate the images of a recipe.

    Args:
        data: the recipe's data section.
        base: the recipe's folder, to which ``data.root`` is relative.
        model: the recipe's model section, which determines the image size and the number of channels.
        valid_fraction: fraction of the training images that is held out for validation if the recipe names no validation images.
        skip_damaged: whether damaged images are skipped.

    Raises:
        DataError: the images cannot be listed, some are damaged, or there are too few images to split.
    """
    root = base / expand_path(data.root)

    def read(files: Any, split: str | None = None) -> Images:
        return read_images(root / expand_path(files.images), model.image_size, model.channels, split, skip_damaged)

    def split(images: Images) -> tuple[Images, Images]:
        return holdout(images, images.digests, valid_fraction, "images")

    if isinstance(data.generate, DigitsConfig):
        digits, test = load_digits(data.generate, model.image_size, model.channels)
        return Splits(*split(digits), test)
    files: Any = data.train
    folder = root / expand_path(files.images)
    splits = list_splits(folder)
    if splits and "train" not in splits:
        raise DataError(f"{folder}: expected a split folder train, found {' and '.join(splits)} only; give a folder of class folders")
    if not splits:
        return read_splits(data, read, split)
    train = read(files, "train")
    if data.valid is None and "valid" not in splits:
        train, valid = split(train)
    else:
        valid = read(data.valid or files, "valid")
    return Splits(train, valid, read(data.test or files, "test") if data.test or "test" in splits else None)


def pixel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel, for pixel values scaled to the range from 0 to 1.

    Both are estimated from at most ``MAX_STATISTICS_IMAGES`` images. The standard deviation of a constant channel is set to 1.
    """
    step = -(-len(images) // MAX_STATISTICS_IMAGES)
    total, squares, n = torch.zeros(()), torch.zeros(()), 0
    for samples in np.array_split(np.arange(0, len(images), step), -(-len(images) // step // 500) or 1):
        pixels = images.load(samples.tolist()).double() / 255
        total, squares, n = total + pixels.sum((0, 2, 3)), squares + pixels.square().sum((0, 2, 3)), n + pixels[:, 0].numel()
    mean = total / n
    std = (squares / n - mean.square()).clamp(min=0).sqrt()
    return tuple(mean.tolist()), tuple(torch.where(std > 1e-4, std, 1.0).tolist())


def image_batches(images: Images, labels: Sequence[int], batch_size: int) -> Iterator[ImageBatch]:
    """Batch images in their order and without augmentation, for a single pass over the data such as validation.

    Args:
        images: labeled images.
        labels: class index of each image.
        batch_size: number of images per batch.
    """
    for start in range(0, len(images), batch_size):
        samples = range(start, min(start + batch_size, len(images)))
        yield ImageBatch(images.load(samples) / 255, torch.tensor([labels[i] for i in samples]), tuple(samples))


def image_fingerprint(*parts: Images) -> str:
    """Return a hash of labeled images, by which a resumed run detects changed data.

    The hash depends on the content of all image files, on their classes and on their order.
    """
    total = blake2b(digest_size=16)
    for images in parts:
        for digest, label in zip(images.digests, images.labels, strict=True):
            total.update(f"{digest} {label}\n".encode())
        total.update(b"\0")
    return total.hexdigest()


class ImageLoader:
    """Loader of endless training batches of images, resumable at any position.

    Each epoch augments the images in a different way. A position is the number of images that all ranks together have read since the start
    of training. The position is the whole state of the loader.

    Attributes:
        images: the training images.
        labels: class index of each image.
        n_samples: number of images per epoch.
    """

    def __init__(
        self,
        images: Images,
        classes: Sequence[str],
        *,
        batch_size: int,
        seed: int,
        augmentation: ImageAugmentationConfig,
        micro_batching: MicroBatching = FULL_BATCH,
    ) -> None:
        """Encode the class labels and set up augmentation.

        Args:
            images: labeled images.
            classes: names of the classes by index.
            batch_size: maximum number of images per batch over all ranks and micro-batches. The sizes of an epoch's batches differ by at
                most one image.
            seed: random seed of the order of images and of augmentation.
            augmentation: the recipe's augmentation settings.
            micro_batching: split of each batch over ranks and micro-batches.

        Raises:
            DataError: an image has an unknown class.
        """
        self.images, self.n_samples = images, len(images)
        self.labels = encode_labels(images.labels, classes, images)
        self._augmenter = Augmenter(augmentation, seed)
        self._batch_size, self._seed, self._micro_batching = batch_size, seed, micro_batching

    def batches_from(self, position: int) -> Iterator[tuple[int, list[ImageBatch]]]:
        """Yield batches endlessly, starting at a position.

        Yields:
            The position after the batch, which a checkpoint stores, and this rank's part of the batch as a list of micro-batches.
        """
        for end, epoch, batch in iterate_epochs(position, self.n_samples, self._plan):
            partner = dict(zip(batch.tolist(), np.roll(batch, 1).tolist(), strict=True))
            yield end, [self._batch(part.tolist(), partner, epoch) for part in self._micro_batching.split(batch)]

    def _plan(self, epoch: int) -> list[Indices]:
        order = np.argsort(stateless_uniform(self.n_samples, self._seed, epoch)[0], kind="stable")
        return np.array_split(order, -(-len(order) // self._batch_size))

    def _batch(self, rows: list[int], partner: dict[int, int], epoch: int) -> ImageBatch:
        """Build a micro-batch of augmented images, each of which is mixed with its partner if the recipe enables mixing.

        Args:
            rows: indices of the images in the micro-batch.
            partner: index of the partner of each image of the whole batch. A partner may belong to another rank.
            epoch: index of the epoch.
        """
        augmenter, labels = self._augmenter, torch.tensor([self.labels[i] for i in rows])
        if not augmenter.uses_mixup:
            return ImageBatch(augmenter.augment(self.images.load(rows) / 255, epoch, rows), labels, tuple(rows))
        others = [partner[row] for row in rows]
        wanted = list(dict.fromkeys([*rows, *others]))
        changed = augmenter.augment(self.images.load(wanted) / 255, epoch, wanted)
        place = {sample: number for number, sample in enumerate(wanted)}
        own, theirs = changed[[place[row] for row in rows]], changed[[place[row] for row in others]]
        pixels, mixed = augmenter.mix(own, theirs, [self.labels[i] for i in others], epoch, rows)
        return ImageBatch(pixels, labels, tuple(rows), mixed)
