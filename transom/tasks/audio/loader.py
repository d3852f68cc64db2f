"""Reads or synthesizes sounds, and batches their log-mel spectrograms with SpecAugment.

A spectrogram is stored like an image with a single channel of 8 bits, so that the code for images can batch and normalize it.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from transom.config.training import ImageAugmentationConfig
from transom.data.batch import ImageBatch
from transom.data.images.image_files import Images
from transom.data.images.loader import ImageLoader
from transom.data.labeled.damaged_files import report_damaged
from transom.data.sampler import stateless_uniform
from transom.data.split import Splits, holdout, read_splits
from transom.data.text.text_io import expand_path
from transom.errors import UnreadableFileError
from transom.tasks.audio.schema import AudioDataConfig, AudioFilesConfig, SpecAugmentConfig, SpectrogramTransformerConfig
from transom.tasks.audio.spectrogram import log_mel_spectrogram
from transom.tasks.audio.synthetic import CLASSES, synthesize
from transom.tasks.audio.wav import decode_wav, list_sounds, read_file

SPEC_AUGMENT_STREAM = 1
"""Last part of the random key of SpecAugment, which is (seed, epoch, sample, ``SPEC_AUGMENT_STREAM``)."""


def load_sounds(data: AudioDataConfig, base: Path, config: SpectrogramTransformerConfig) -> Splits[Images]:
    """Read or synthesize the sounds of a recipe, and return their spectrograms.

    Args:
        data: data section of the recipe.
        base: folder that a relative ``data.root`` is resolved against.
        config: model configuration with the spectrogram settings.

    Raises:
        DataError: the sounds cannot be listed, some are damaged, or there are too few sounds to split.
    """
    if (sounds := data.generate) is not None:
        sizes = {"train": sounds.n_train, "valid": sounds.n_valid, "test": sounds.n_test}
        return Splits(*(synthesize_split(split, n, sounds.seed, config) for split, n in sizes.items()))
    root = base / expand_path(data.root)

    def read(files: AudioFilesConfig) -> Images:
        return read_sounds(root / expand_path(files.audio), config, data.skip_damaged)

    return read_splits(data, read, lambda sounds: holdout(sounds, sounds.digests, data.valid_fraction, "sounds"))


def decode_spectrogram(data: bytes, location: str, config: SpectrogramTransformerConfig) -> UInt8[Tensor, "1 size size"]:
    """Decode a WAV file, and return the spectrogram that the model reads.

    Args:
        data: content of the file.
        location: location of the file, for messages.
        config: model configuration with the spectrogram settings.

    Raises:
        DataError: the file cannot be decoded.
    """
    sound = decode_wav(data, location, config.sample_rate, config.length)
    return log_mel_spectrogram(sound, config.sample_rate, config.n_fft, config.image_size)


def read_sounds(folder: Path, config: SpectrogramTransformerConfig, skip_damaged: bool | None = None) -> Images:
    """Read the sounds CLASS/NAME.wav of a folder as spectrograms with classes.

    Args:
        folder: the folder that contains the class folders.
        config: model configuration with the spectrogram settings.
        skip_damaged: whether damaged sounds are skipped. None refuses them without naming the option that skips them.

    Raises:
        DataError: the sounds cannot be listed, some are damaged and ``skip_damaged`` is not set, or all sounds of a class are damaged.
    """
    names, n_ignored = list_sounds(folder)
    digests, found, damaged = [], [], dict[str, str]()
    for name in names:
        try:
            data = read_file(folder / name)
            found.append(decode_spectrogram(data, f"{folder}, {name}", config))
        except UnreadableFileError as error:
            damaged[name] = error.reason
            continue
        digests.append(blake2b(data, digest_size=16).hexdigest())
    notes = report_damaged(damaged, names, [_class_of(name) for name in names], str(folder), "sound", skip_damaged)
    readable = [name for name in names if name not in damaged]
    return _images(readable, digests, str(folder), n_ignored, torch.stack(found), notes)


def synthesize_split(split: str, n: int, seed: int, config: SpectrogramTransformerConfig) -> Images:
    """Synthesize the sounds of a split, and return their spectrograms. The classes of the sounds alternate in a fixed order.

    Args:
        split: name of the split, "train", "valid" or "test"; the speakers and pitches of the splits are disjoint.
        n: number of sounds.
        seed: random seed.
        config: model configuration with the spectrogram settings.
    """
    labels, digests, found = [CLASSES[i % len(CLASSES)] for i in range(n)], [], []
    for i, label in enumerate(labels):
        sound = synthesize(label, split, i, seed, config.sample_rate, config.length)
        digests.append(blake2b(sound.numpy().tobytes(), digest_size=16).hexdigest())
        found.append(log_mel_spectrogram(sound, config.sample_rate, config.n_fft, config.image_size))
    names = [f"{label}/{split}-{i}" for i, label in enumerate(labels)]
    return _images(names, digests, f"synthesized sounds, {split}", 0, torch.stack(found))


def _images(
    names: list[str],
    digests: list[str],
    origin: str,
    n_ignored: int,
    spectrograms: UInt8[Tensor, "n 1 size size"],
    notes: tuple[str, ...] = (),
) -> Images:
    """Wrap spectrograms as a data set of images."""
    labels = [_class_of(name) for name in names]
    return Images(names, labels, digests, origin, n_ignored, lambda samples: spectrograms[list(samples)], notes)


def _class_of(name: str) -> str:
    """Return the class of a sound, which is the first part of its name."""
    return name.split("/", 1)[0]


def spec_augment(
    x: Float[Tensor, "batch 1 bands frames"], spec_augment_config: SpecAugmentConfig, seed: int, epoch: int, samples: Sequence[int]
) -> Float[Tensor, "batch 1 bands frames"]:
    """Mask random frequency bands and frames of spectrograms (SpecAugment, Park et al. 2019, section 2, without time warping).

    A frequency mask covers the bands [f0, f0 + f) of n bands, with f uniform in 0 .. ``freq_mask_param`` and f0 uniform in 0 .. n - f. A
    time mask covers frames in the same way, with f uniform in 0 .. ``time_mask_param``. Masked values become the mean of the spectrogram.
    The random numbers depend on (seed, epoch, sample) only.

    Args:
        x: the spectrograms.
        spec_augment_config: numbers and maximum widths of the masks.
        seed: random seed.
        epoch: index of the epoch, from 0.
        samples: index of each spectrogram in the data set.
    """
    x = x.clone()
    for row, sample in zip(x, samples, strict=True):
        numbers: Iterator[float] = iter(
            stateless_uniform(
                spec_augment_config.n_freq_masks + spec_augment_config.n_time_masks + 1, seed, epoch, sample, SPEC_AUGMENT_STREAM
            )
            .reshape(-1)
            .tolist()
        )
        mean = row.mean()
        for n_masks, max_width, view in (
            (spec_augment_config.n_freq_masks, spec_augment_config.freq_mask_param, row[0]),
            (spec_augment_config.n_time_masks, spec_augment_config.time_mask_param, row[0].T),
        ):
            for _ in range(n_masks):
                width = int(next(numbers) * (min(max_width, len(view)) + 1))
                start = int(next(numbers) * (len(view) - width + 1))
                view[start : start + width] = mean
    return x


class AudioLoader(ImageLoader):
    """Endless loader of training batches of spectrograms, with new SpecAugment masks in each epoch. It can resume at any position."""

    def __init__(
        self, sounds: Images, classes: Sequence[str], *, spec_augment_config: SpecAugmentConfig, seed: int, **options: Any
    ) -> None:
        """Initialize the loader. ``options`` are the other arguments of ``ImageLoader``.

        Raises:
            DataError: the class of a sound is not among ``classes``.
        """
        super().__init__(sounds, classes, seed=seed, augmentation=ImageAugmentationConfig(), **options)
        self._masking = spec_augment_config

    def _batch(self, rows: list[int], partner: dict[int, int], epoch: int) -> ImageBatch:
        batch = super()._batch(rows, partner, epoch)
        return ImageBatch(spec_augment(batch.pixels, self._masking, self._seed, epoch, rows), batch.labels, batch.sample_ids)
