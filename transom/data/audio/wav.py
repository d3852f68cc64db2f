"""Sounds from WAV files: found in folders, read with limits, brought to one sampling rate."""

import re
import wave
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transom.errors import DataError
from transom.files.regular import open_regular

MAX_BYTES = 2**28
"""Bytes of a file: 25 minutes of stereo at 44.1 kHz in 16 bits."""

MIN_RATE, MAX_RATE = 1_000, 768_000
"""Samples a second."""


def list_sounds(folder: Path) -> tuple[list[str], int]:
    """Find the sounds of a folder, CLASS/NAME.wav; hidden files are passed over.

    Returns:
        Their names in their order as text, and the number of other files beside them.

    Raises:
        DataError: there is no such folder, it has no sounds, or one is in no class's folder.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder}: expected a folder of sounds as CLASS/NAME.wav, found {'a file' if folder.exists() else 'nothing there'}"
        )
    paths = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    visible = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
    names = sorted(path.as_posix() for path in visible if path.suffix.lower() == ".wav")
    if not names:
        raise DataError(f"{folder}: expected sounds as CLASS/NAME.wav, found none")
    for name in names:
        if "/" not in name:
            raise DataError(f"{folder}: expected each sound in a folder that is named for its class, found {name} in none; put it into one")
        if re.search("[\ud800-\udfff]", label := name.split("/", 1)[0]):
            raise DataError(f"{folder}: expected classes whose names are UTF-8, found {label!a}; rename the folder")
    return names, len(visible) - len(names)


def read_file(file: Path) -> bytes:
    """Read a sound's file.

    Raises:
        DataError: it cannot be read, or is too large.
    """
    try:
        with open_regular(file, DataError) as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"{file}: expected a WAV file, found a file that cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise DataError(f"{file}: expected a WAV file of at most {MAX_BYTES:,} bytes, found more; cut it into shorter ones")
    return data


def decode(data: bytes, place: str, rate: int, length: int) -> Float[Tensor, "length"]:
    """Decode a WAV file: its channels averaged, its middle, at the wanted rate.

    Nothing is allocated by what the header says: only by the bytes that are there.

    Args:
        data: the file: PCM of 8, 16, 24 or 32 bits, mono or stereo.
        place: where it is, for people.
        rate: wanted samples a second.
        length: wanted samples; a longer sound loses both ends, a shorter one is padded with silence at both.

    Returns:
        Samples from -1 to 1.

    Raises:
        DataError: it is no such file, truncated, or empty.
    """
    try:
        with wave.open(BytesIO(data)) as opened:
            channels, width, theirs, promised = opened.getparams()[:4]
            raw = opened.readframes(promised)
    except (wave.Error, EOFError, RuntimeError) as error:  # the last where a part is said to be longer than the file
        why = f" ({error})" if str(error) else ""
        raise DataError(f"{place}: expected a WAV file of PCM samples, found a file that cannot be read as one{why}; convert it") from error
    frames = len(raw) // max(channels * width, 1)
    if channels not in (1, 2) or width not in (1, 2, 3, 4):
        raise DataError(f"{place}: expected mono or stereo of 8 to 32 bits, found {channels} channels of {8 * width} bits; convert it")
    if not MIN_RATE <= theirs <= MAX_RATE:
        raise DataError(f"{place}: expected {MIN_RATE:,} to {MAX_RATE:,} samples a second, found {theirs:,}; convert it")
    if frames < promised:
        raise DataError(f"{place}: expected {promised:,} samples by its header, found {frames:,}: the file is truncated; copy it anew")
    if not frames:
        raise DataError(f"{place}: expected a sound, found a file without samples; remove it")
    wanted = -(-length * theirs // rate)
    start = max(0, (frames - wanted) // 2)
    step = channels * width
    x = _numbers(raw[start * step : (start + wanted) * step], width).reshape(-1, channels).mean(1)
    return fitted(resample(torch.from_numpy(x), theirs, rate).float(), length)


def _numbers(raw: bytes, width: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Turn PCM samples into numbers from -1 to 1: 8 bits count from 0, all others are signed, the smallest byte first."""
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float64) - 128) / 128
    padded = np.zeros((len(raw) // width, 4), np.uint8)
    padded[:, 4 - width :] = np.frombuffer(raw, np.uint8).reshape(-1, width)
    return padded.reshape(-1).view("<i4").astype(np.float64) / 2**31


def resample(x: Float[Tensor, "samples"], old: int, new: int) -> Float[Tensor, "new_samples"]:
    """Bring a sound to another rate: frequencies that both rates can hold stay, all others go.

    X = DFT(x); y = IDFT of X cut or padded with zeros to the new length, times new / old: exact for a sound that repeats.
    """
    if old == new:
        return x
    length = max(1, round(len(x) * new / old))
    spectrum = torch.fft.rfft(x)[: length // 2 + 1]
    if 0 < len(x) < length and len(x) % 2 == 0:
        spectrum[-1] /= 2  # the highest frequency stood for itself and its mirror image
    return torch.fft.irfft(spectrum, length) * (length / len(x))


def fitted(x: Float[Tensor, "samples"], length: int) -> Float[Tensor, "length"]:
    """Cut or pad a sound at both ends."""
    if (extra := len(x) - length) >= 0:
        return x[extra // 2 : extra // 2 + length]
    return torch.nn.functional.pad(x, (-extra // 2, -extra - -extra // 2))


def encode(x: Float[Tensor, "samples"], rate: int) -> bytes:
    """Write a sound from -1 to 1 as a WAV file, mono of 16 bits."""
    with wave.open(file := BytesIO(), "wb") as opened:
        opened.setnchannels(1)
        opened.setsampwidth(2)
        opened.setframerate(rate)
        opened.writeframes((x.double() * 32767).round().clamp(-32768, 32767).short().numpy().astype("<i2").tobytes())
    return file.getvalue()
