"""Sounds from WAV files: found in folders, read with limits, brought to one sampling rate."""

import re
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from transom.errors import DataError
from transom.files.regular import open_regular

MAX_BYTES = 2**28
"""Bytes of a file: 25 minutes of stereo at 44.1 kHz in 16 bits."""

MIN_RATE, MAX_RATE = 1_000, 768_000
"""Samples a second."""

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
"""Formats by their number; that of an extensible header stands further behind in it."""

WIDTHS = {PCM: (8, 16, 24, 32), FLOAT: (32, 64)}
"""Bits of a sample."""


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
    tops = [[top, *top.rglob("*")] for top in folder.iterdir()]  # a class's folder may be a link, and a broken link is no folder
    paths = [file.relative_to(folder) for top in tops for file in top if not file.is_dir()]
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


class Wave(NamedTuple):
    """A WAV file, taken apart.

    Attributes:
        kind: PCM or FLOAT.
        bits: of a sample.
        channels: 1 or 2.
        rate: samples a second.
        samples: bytes of all samples, those of both channels in turn.
    """

    kind: int
    bits: int
    channels: int
    rate: int
    samples: bytes


def parse(data: bytes, place: str) -> Wave:
    """Take a WAV file apart (IBM & Microsoft 1991); nothing is allocated by what its header says.

    Args:
        data: the file.
        place: where it is, for people.

    Raises:
        DataError: it is no such file, of a format that is not read, truncated, or empty.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise DataError(f"{place}: expected a WAV file, found one that does not begin as these do; convert it")
    parts, at = dict[bytes, tuple[int, bytes]](), 12
    while b"data" not in parts and at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        parts.setdefault(name, (size, data[at + 8 : at + 8 + size]))
        at += 8 + size + size % 2
    header = parts.get(b"fmt ", (0, b""))[1]
    if len(header) < 16 or b"data" not in parts:
        raise DataError(f"{place}: expected a WAV file, found one whose header ends early; copy it anew")
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", header)
    if kind == EXTENSIBLE and len(header) >= 26:
        (kind,) = struct.unpack_from("<H", header, 24)
    if bits not in WIDTHS.get(kind, ()):
        raise DataError(f"{place}: expected PCM of 8 to 32 bits or floats of 32 or 64, found format {kind} of {bits} bits; convert it")
    if channels not in (1, 2):
        raise DataError(f"{place}: expected mono or stereo, found {channels:,} channels; convert it")
    if not MIN_RATE <= rate <= MAX_RATE:
        raise DataError(f"{place}: expected {MIN_RATE:,} to {MAX_RATE:,} samples a second, found {rate:,}; convert it")
    promised, samples = parts[b"data"]
    step = channels * bits // 8
    if len(samples) < promised:
        raise DataError(
            f"{place}: expected {promised // step:,} samples by its header, found {len(samples) // step:,}: the file is truncated;"
            " copy it anew"
        )
    if len(samples) < step:
        raise DataError(f"{place}: expected a sound, found a file without samples; remove it")
    return Wave(kind, bits, channels, rate, samples)


def decode(data: bytes, place: str, rate: int, length: int) -> Float[Tensor, "length"]:
    """Decode a WAV file: its middle, channels averaged, at the wanted rate.

    Args:
        data: the file.
        place: where it is, for people.
        rate: wanted samples a second.
        length: wanted samples; a longer sound loses both ends, a shorter one is padded with silence at both.

    Returns:
        Samples from -1 to 1; those of a file of floats that go beyond are scaled down together.

    Raises:
        DataError: it cannot be read as a sound.
    """
    wave = parse(data, place)
    step = wave.channels * wave.bits // 8
    frames, wanted = len(wave.samples) // step, -(-length * wave.rate // rate)
    start = max(0, (frames - wanted) // 2)
    x = _numbers(wave.samples[start * step : min(start + wanted, frames) * step], wave)
    if not np.isfinite(x).all():
        raise DataError(f"{place}: expected samples that are numbers, found some that are not finite; convert it anew")
    x = (x / max(1.0, np.abs(x).max())).reshape(-1, wave.channels).mean(1)
    return fitted(resample(torch.from_numpy(x), wave.rate, rate).float(), length)


def _numbers(raw: bytes, wave: Wave) -> NDArray[np.float64]:
    """Turn samples into numbers: PCM of 8 bits counts from 0, all other PCM is signed; the smallest byte comes first."""
    if wave.kind == FLOAT:
        return np.frombuffer(raw, f"<f{wave.bits // 8}").astype(np.float64)
    if wave.bits == 8:
        return (np.frombuffer(raw, np.uint8).astype(np.float64) - 128) / 128
    width = wave.bits // 8
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
