"""Audio data: sounds from files or synthesized, as batches of log-mel spectrograms with SpecAugment.

A spectrogram is stored in 8 bits like a single-channel image, and the image pipeline handles it from there.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from transom.config.training import Augmentation
from transom.data.batch import ImageBatch
from transom.data.images.images import Images
from transom.data.images.loader import ImageLoader
from transom.data.sampler import draws
from transom.data.split import Splits, read_splits, split_off
from transom.data.text.text import expanded
from transom.tasks.audio.schema import AudioData, AudioFiles, SpecAugment, SpectrogramTransformer
from transom.tasks.audio.spectrogram import log_mel
from transom.tasks.audio.synthetic import CLASSES, synthesize
from transom.tasks.audio.wav import decode, list_sounds, read_file

SPEC_AUGMENT = 1
"""Last part of the random key of SpecAugment; the key of the sample order is (seed, epoch)."""


def load_sounds(data: AudioData, base: Path, config: SpectrogramTransformer) -> Splits[Images]:
    """Read or synthesize the sounds of a recipe.

    Args:
        data: data section of the recipe.
        base: folder that ``data.root`` is relative to.
        config: spectrogram settings.

    Raises:
        DataError: a sound cannot be read, or there are too few to split.
    """
    if (sounds := data.generate) is not None:
        sizes = {"train": sounds.n_train, "valid": sounds.n_valid, "test": sounds.n_test}
        return Splits(*(synthesized(part, n, sounds.seed, config) for part, n in sizes.items()))
    root = base / expanded(data.root)

    def read(files: AudioFiles) -> Images:
        return read_sounds(root / expanded(files.audio), config)

    return read_splits(data, read, lambda sounds: split_off(sounds, sounds.digests, data.valid_share, "sounds"))


def spectrogram_of(data: bytes, place: str, config: SpectrogramTransformer) -> UInt8[Tensor, "1 size size"]:
    """Decode a WAV file and return the spectrogram that the model reads.

    Raises:
        DataError: the file cannot be decoded.
    """
    sound = decode(data, place, config.sample_rate, config.length)
    return log_mel(sound, config.sample_rate, config.n_fft, config.image_size)


def read_sounds(folder: Path, config: SpectrogramTransformer) -> Images:
    """Read all sounds of a folder with files CLASS/NAME.wav as spectrograms.

    Raises:
        DataError: a sound cannot be read.
    """
    names, n_ignored = list_sounds(folder)
    digests, found = [], []
    for name in names:
        data = read_file(folder / name)
        digests.append(blake2b(data, digest_size=16).hexdigest())
        found.append(spectrogram_of(data, f"{folder}, {name}", config))
    return _images(names, digests, str(folder), n_ignored, torch.stack(found))


def synthesized(part: str, n: int, seed: int, config: SpectrogramTransformer) -> Images:
    """Synthesize a split as spectrograms, cycling through the classes.

    Args:
        part: train, valid or test, which have disjoint speakers and pitches.
        n: number of sounds.
        seed: random seed.
        config: spectrogram settings.
    """
    labels, digests, found = [CLASSES[i % len(CLASSES)] for i in range(n)], [], []
    for i, label in enumerate(labels):
        sound = synthesize(label, part, i, seed, config.sample_rate, config.length)
        digests.append(blake2b(sound.numpy().tobytes(), digest_size=16).hexdigest())
        found.append(log_mel(sound, config.sample_rate, config.n_fft, config.image_size))
    names = [f"{label}/{part}-{i}" for i, label in enumerate(labels)]
    return _images(names, digests, f"synthesized sounds, {part}", 0, torch.stack(found))


def _images(names: list[str], digests: list[str], name: str, n_ignored: int, held: UInt8[Tensor, "n 1 size size"]) -> Images:
    """Wrap spectrograms as images; the class of each is the first part of its name."""
    return Images(names, [name.split("/", 1)[0] for name in names], digests, name, n_ignored, lambda samples: held[list(samples)])


def spec_augment(
    x: Float[Tensor, "batch 1 bands frames"], masking: SpecAugment, seed: int, epoch: int, samples: Sequence[int]
) -> Float[Tensor, "batch 1 bands frames"]:
    """Apply SpecAugment: mask frequency bands and frames of spectrograms (Park et al. 2019, section 2, without time warping).

    A mask covers [f0, f0 + f) with f uniform in 0 .. ``bands`` and f0 uniform in 0 .. n - f, and is filled with the mean of the
    spectrogram. The random numbers depend on (seed, epoch, sample) only.
    """
    x = x.clone()
    for row, sample in zip(x, samples, strict=True):
        numbers: Iterator[float] = iter(
            draws(masking.n_bands + masking.n_times + 1, seed, epoch, sample, SPEC_AUGMENT).reshape(-1).tolist()
        )
        mean = row.mean()
        for runs, most, view in ((masking.n_bands, masking.bands, row[0]), (masking.n_times, masking.times, row[0].T)):
            for _ in range(runs):
                width = int(next(numbers) * (min(most, len(view)) + 1))
                start = int(next(numbers) * (len(view) - width + 1))
                view[start : start + width] = mean
    return x


class AudioLoader(ImageLoader):
    """Endless training batches of spectrograms from any position, with new SpecAugment masks in each epoch."""

    def __init__(self, sounds: Images, classes: Sequence[str], *, masking: SpecAugment, seed: int, **options: Any) -> None:
        """Build the loader; arguments as for ``ImageLoader``.

        Raises:
            DataError: a sound has an unknown class.
        """
        super().__init__(sounds, classes, seed=seed, augmentation=Augmentation(), **options)
        self._masking = masking

    def _batch(self, rows: list[int], partner: dict[int, int], epoch: int) -> ImageBatch:
        batch = super()._batch(rows, partner, epoch)
        return ImageBatch(spec_augment(batch.pixels, self._masking, self._seed, epoch, rows), batch.labels, batch.samples)
