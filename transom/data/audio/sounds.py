"""Sounds with a class each: read from a folder or synthesized, as log-mel spectrograms."""

import re
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transom.data.audio.spectrogram import log_mel
from transom.data.audio.wav import fit_length, read_wav, resample
from transom.data.images.images import Images
from transom.data.split import Splits
from transom.errors import DataError
from transom.files.limits import MAX_SOUND_BYTES
from transom.files.regular import read_regular

Spectrum = Callable[[Float[Tensor, "samples"], int], Float[Tensor, "mels frames"]]
"""Makes the spectrogram of a waveform with its sample rate."""

VOWELS = {"a": (730, 1090, 2440), "i": (270, 2290, 3010), "u": (300, 870, 2240)}
"""Formants in Hz of men's vowels (Peterson & Barney 1952, table II)."""

SYNTHESIZED = ("chirp down", "chirp up", "noise", "tone", *(f"vowel {name}" for name in VOWELS))
"""The classes of synthesized sounds."""


def spectrum_of(rate: int, seconds: float, size: int, window: int) -> Spectrum:
    """Return what brings a waveform to a rate and a length, and computes its log-mel spectrogram of ``size`` bands and frames."""
    n = round(rate * seconds)

    def spectrum(x: Float[Tensor, "samples"], old: int) -> Float[Tensor, "mels frames"]:
        x = x if len(x) <= 2 * seconds * old else fit_length(x, round(2 * seconds * old))
        return log_mel(fit_length(resample(x, old, rate), n), size, size, window, rate)

    return spectrum


def read_spectrum(file: Path, spectrum: Spectrum) -> tuple[Float[Tensor, "mels frames"], str]:
    """Read a WAV file; return its spectrogram and the hash of its bytes.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        data = read_regular(file, MAX_SOUND_BYTES, "a WAV file", DataError)
    except OSError as error:
        raise DataError(f"{file}: expected a WAV file, found a file that cannot be read: {error.strerror}") from error
    return spectrum(*read_wav(data, str(file))), blake2b(data, digest_size=16).hexdigest()


def read_sounds(folder: Path, spectrum: Spectrum) -> Images:
    """Read all sounds CLASS/NAME.wav of a folder; hidden files are ignored.

    Raises:
        DataError: there are none, or one cannot be read.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder of CLASS/NAME.wav, found {'a file' if folder.exists() else 'nothing there'}")
    files = [file for file in folder.rglob("*") if file.is_file() and not any(p.startswith(".") for p in file.relative_to(folder).parts)]
    names = sorted(file.relative_to(folder).as_posix() for file in files if file.suffix.lower() == ".wav")
    if not names:
        raise DataError(f"{folder}: expected sounds as CLASS/NAME.wav, found none")
    for name in names:
        if "/" not in name:
            raise DataError(f"{folder}: expected each sound in a folder that is named for its class, found {name} in none; put it into one")
        if re.search("[\ud800-\udfff]", label := name.split("/", 1)[0]):
            raise DataError(f"{folder}: expected classes whose names are UTF-8, found {label!a}; rename the folder")
    found = [read_spectrum(folder / name, spectrum) for name in names]
    return _sounds(names, [each for each, _ in found], [digest for _, digest in found], str(folder), len(files) - len(names))


def _sounds(names: list[str], spectra: list[Tensor], digests: list[str], place: str, n_ignored: int = 0) -> Images:
    stacked = torch.stack(spectra)[:, None]

    def load(samples: Sequence[int]) -> Float[Tensor, "sounds 1 mels frames"]:
        return stacked[list(samples)]

    return Images(names, [name.split("/", 1)[0] for name in names], digests, place, n_ignored, load)


def synthesize_splits(n_train: int, n_valid: int, n_test: int, seed: int, spectrum: Spectrum) -> Splits[Images]:
    """Synthesize three parts whose speakers, each a pitch and a scale of formants, and whose pitches are disjoint.

    A speaker of the three parts has number 0 to 5, 6 to 7 or 8 to 9 of each ten.
    """

    def part(name: str, n: int, speakers: Sequence[int], stream: int) -> Images:
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, stream])))
        names, waves = [], []
        for number in range(n):
            label = SYNTHESIZED[number % len(SYNTHESIZED)]
            speaker = 10 * int(rng.integers(6)) + speakers[int(rng.integers(len(speakers)))]
            names.append(f"{label}/speaker {speaker}, {number}.wav")
            waves.append(synthesize(label, speaker, rng))
        digests = [blake2b(each.numpy().tobytes(), digest_size=16).hexdigest() for each in waves]
        return _sounds(names, [spectrum(each, RATE) for each in waves], digests, f"synthesized sounds, {name}")

    return Splits(part("train", n_train, range(6), 0), part("valid", n_valid, (6, 7), 1), part("test", n_test, (8, 9), 2))


RATE = 8000
"""Samples a second of synthesized sounds."""


def synthesize(label: str, speaker: int, rng: np.random.Generator) -> Float[Tensor, "samples"]:
    """Synthesize half a second of a class by a speaker from 0 to 59: pitch 90 * 2^(speaker / 40) Hz, formants scaled by 0.85 to 1.15.

    A vowel is a sum of harmonics, weighted by resonances 1 / (1 + ((f - F_i) / 80)^2) at its formants F_i.
    """
    t = np.arange(RATE // 2) / RATE
    pitch, scale = 90 * 2 ** (speaker / 40), 0.85 + 0.3 * (speaker * 7 % 60) / 59
    if label == "noise":
        x = np.convolve(rng.standard_normal(len(t)), rng.random(4) * scale, "same")
    elif label == "tone":
        x = np.sin(2 * np.pi * 3 * pitch * t)
    elif label.startswith("chirp"):
        low, high = 2 * pitch, 2 * pitch * 2 ** rng.uniform(1, 2.5)
        start, end = (low, high) if label == "chirp up" else (high, low)
        x = np.sin(2 * np.pi * (start * t + (end - start) * t**2))
    else:
        harmonics = np.arange(1, int(RATE / 2 / pitch)) * pitch
        peaks = np.array(VOWELS[label.removeprefix("vowel ")])[:, None] * scale
        weights = (np.array([1.0, 0.5, 0.25])[:, None] / (1 + ((harmonics - peaks) / 80) ** 2)).sum(0)
        x = (weights[:, None] * np.sin(2 * np.pi * harmonics[:, None] * t + rng.uniform(0, 2 * np.pi, (len(harmonics), 1)))).sum(0)
    x = x / np.abs(x).max() * rng.uniform(0.1, 0.9) + rng.uniform(0.001, 0.02) * rng.standard_normal(len(t))
    return torch.from_numpy(np.clip(x, -1, 1).astype(np.float32))
