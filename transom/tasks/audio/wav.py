"""Finds WAV files in folders, decodes them within limits of size and sampling rate, and resamples sounds."""

import re
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from transom.errors import DataError, UnreadableFileError
from transom.files.message import phrase
from transom.files.regular_files import open_regular_file

MAX_WAV_BYTES = 2**28
"""Maximum size of a WAV file in bytes, which is enough for 25 minutes of 16-bit stereo at 44.1 kHz."""

MIN_RATE, MAX_RATE = 1_000, 768_000
"""Minimum and maximum sampling rate of a WAV file, in Hz."""

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
"""Format tags in the header of a WAV file. After the tag EXTENSIBLE, the tag of the actual format follows later in the header."""

BIT_DEPTHS = {PCM: (8, 16, 24, 32), FLOAT: (32, 64)}
"""Supported numbers of bits per sample for each format tag."""


def list_sounds(folder: Path) -> tuple[list[str], int]:
    """List the files CLASS/NAME.wav in a folder. Hidden files, and files in hidden folders, are skipped.

    Returns:
        The sorted paths of the WAV files, relative to the folder, and the number of files of other types.

    Raises:
        DataError: the folder does not exist or contains no sounds, a sound is not in a class folder, or the name of a class is not UTF-8.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder}: expected a folder of sounds as CLASS/NAME.wav, found {'a file' if folder.exists() else 'nothing there'}"
        )
    class_folders = [
        [class_folder, *class_folder.rglob("*")] for class_folder in folder.iterdir()
    ]  # a class folder may be a symlink, and a broken symlink counts as a file
    paths = [file.relative_to(folder) for class_folder in class_folders for file in class_folder if not file.is_dir()]
    visible = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
    names = sorted(path.as_posix() for path in visible if path.suffix.lower() == ".wav")
    if not names:
        raise DataError(f"{folder}: expected sounds as CLASS/NAME.wav, found none")
    for name in names:
        if "/" not in name:
            raise DataError(
                f"{folder}: expected each sound in a folder named after its class, found {name} outside of such a folder; move it into one"
            )
        if re.search("[\ud800-\udfff]", label := name.split("/", 1)[0]):
            raise DataError(f"{folder}: expected class names in UTF-8, found {label!a}; rename the folder")
    return names, len(visible) - len(names)


def read_file(file: Path) -> bytes:
    """Read the bytes of a sound file.

    Raises:
        UnreadableFileError: the file cannot be read or is too large.
    """
    try:
        with open_regular_file(file, UnreadableFileError) as opened:
            data = opened.read(MAX_WAV_BYTES + 1)
    except OSError as error:
        message = f"{file}: expected a WAV file, found a file that cannot be read: {error.strerror}"
        raise UnreadableFileError(message, str(error.strerror)) from error
    if len(data) > MAX_WAV_BYTES:
        raise UnreadableFileError(
            phrase(
                "errors.wav_bytes",
                "{file}: expected a WAV file of at most {most} bytes, found more; split it into shorter files",
                file=str(file),
                most=MAX_WAV_BYTES,
            ),
            f"more than {MAX_WAV_BYTES:,} bytes",
        )
    return data


class WavData(NamedTuple):
    """The format and the undecoded samples of a WAV file.

    Attributes:
        kind: format of the samples, ``PCM`` or ``FLOAT``.
        bits: bits per sample.
        channels: number of channels, 1 or 2.
        rate: sampling rate in Hz.
        samples: bytes of all samples, channels interleaved.
    """

    kind: int
    bits: int
    channels: int
    rate: int
    samples: bytes


def parse_wav(data: bytes, location: str) -> WavData:
    """Parse a WAV file (IBM & Microsoft 1991). The sizes in its header never determine how much memory is allocated.

    Args:
        data: content of the file.
        location: location of the file, for messages.

    Raises:
        UnreadableFileError: the content is not a WAV file, or is of an unsupported format, truncated or empty.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise UnreadableFileError(
            phrase("errors.wav", "{file}: expected a WAV file, found no RIFF/WAVE header; convert the file to WAV", file=location)
        )
    parts, at = dict[bytes, tuple[int, bytes]](), 12
    while b"data" not in parts and at + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, at)
        parts.setdefault(name, (size, data[at + 8 : at + 8 + size]))
        at += 8 + size + size % 2
    header = parts.get(b"fmt ", (0, b""))[1]
    if len(header) < 16 or b"data" not in parts:
        raise UnreadableFileError(
            phrase("errors.wav_header", "{file}: expected a WAV file, found a truncated header; copy the file again", file=location)
        )
    kind, channels, rate, _, _, bits = struct.unpack_from("<HHIIHH", header)
    if kind == EXTENSIBLE and len(header) >= 26:
        (kind,) = struct.unpack_from("<H", header, 24)
    _check_format(kind, channels, rate, bits, location)
    n_declared, samples = parts[b"data"]
    step = channels * bits // 8
    if len(samples) < n_declared:
        sizes = {"declared": n_declared // step, "found": len(samples) // step}
        raise UnreadableFileError(
            phrase(
                "errors.wav_truncated",
                "{file}: expected {declared} samples as in its header, found {found}: the file is truncated; copy it again",
                file=location,
                **sizes,
            ),
            "a truncated file",
        )
    if len(samples) < step:
        raise UnreadableFileError(
            phrase("errors.wav_empty", "{file}: expected a sound, found a file without samples; remove it", file=location)
        )
    return WavData(kind, bits, channels, rate, samples)


def _check_format(kind: int, channels: int, rate: int, bits: int, location: str) -> None:
    """Raise if the format of a file is none that can be decoded.

    Raises:
        UnreadableFileError: the message has the format.
    """
    if bits not in BIT_DEPTHS.get(kind, ()):
        raise UnreadableFileError(
            phrase(
                "errors.wav_format",
                "{file}: expected 8 to 32-bit PCM or 32 or 64-bit float, found format {kind} with {bits} bits; convert the file",
                file=location,
                kind=str(kind),
                bits=str(bits),
            )
        )
    if channels not in (1, 2):
        raise UnreadableFileError(
            phrase(
                "errors.wav_channels",
                "{file}: expected mono or stereo, found {channels} channels; convert the file",
                file=location,
                channels=channels,
            )
        )
    if not MIN_RATE <= rate <= MAX_RATE:
        message = phrase(
            "errors.wav_rate",
            "{file}: expected a sampling rate of {low} to {high} Hz, found {found}; resample it",
            file=location,
            low=MIN_RATE,
            high=MAX_RATE,
            found=rate,
        )
        raise UnreadableFileError(message, f"a sampling rate of {rate:,} Hz")


def decode_wav(data: bytes, location: str, rate: int, length: int) -> Float[Tensor, "length"]:
    """Decode a WAV file to a mono sound of the given sampling rate and length.

    Args:
        data: content of the file.
        location: location of the file, for messages.
        rate: output sampling rate in Hz.
        length: output length in samples; a longer sound is center-cropped, a shorter one is padded with silence at both ends.

    Returns:
        The samples, from -1 to 1. The samples of a float file that exceed this range are all scaled down together.

    Raises:
        UnreadableFileError: the file cannot be decoded.
    """
    wave = parse_wav(data, location)
    step = wave.channels * wave.bits // 8
    frames, n_frames = len(wave.samples) // step, -(-length * wave.rate // rate)
    start = max(0, (frames - n_frames) // 2)
    x = _decode_samples(wave.samples[start * step : min(start + n_frames, frames) * step], wave)
    if not np.isfinite(x).all():
        raise UnreadableFileError(
            phrase("errors.wav_finite", "{file}: expected finite samples, found NaN or infinity; convert the file again", file=location)
        )
    x = (x / max(1.0, np.abs(x).max())).reshape(-1, wave.channels).mean(1)
    return center_crop_or_pad(resample(torch.from_numpy(x), wave.rate, rate).float(), length)


def _decode_samples(raw: bytes, wave: WavData) -> NDArray[np.float64]:
    """Decode little-endian samples to floats. 8-bit PCM samples are unsigned, and all other PCM samples are signed."""
    if wave.kind == FLOAT:
        return np.frombuffer(raw, f"<f{wave.bits // 8}").astype(np.float64)
    if wave.bits == 8:
        return (np.frombuffer(raw, np.uint8).astype(np.float64) - 128) / 128
    width = wave.bits // 8
    padded = np.zeros((len(raw) // width, 4), np.uint8)
    padded[:, 4 - width :] = np.frombuffer(raw, np.uint8).reshape(-1, width)
    return padded.reshape(-1).view("<i4").astype(np.float64) / 2**31


def resample(x: Float[Tensor, "samples"], old: int, new: int) -> Float[Tensor, "new_samples"]:
    """Resample a sound in the frequency domain. Frequencies above half the lower of the two sampling rates are removed.

    The result is the inverse DFT of X = DFT(x), truncated or zero-padded to the new length, times new / old. This is exact for periodic
    sounds.

    Args:
        x: the samples.
        old: sampling rate of ``x`` in Hz.
        new: sampling rate of the result in Hz.
    """
    if old == new:
        return x
    length = max(1, round(len(x) * new / old))
    spectrum = torch.fft.rfft(x)[: length // 2 + 1]
    if 0 < len(x) < length and len(x) % 2 == 0:
        spectrum[-1] /= 2  # the Nyquist bin represented both f and -f
    return torch.fft.irfft(spectrum, length) * (length / len(x))


def center_crop_or_pad(x: Float[Tensor, "samples"], length: int) -> Float[Tensor, "length"]:
    """Center-crop a sound to ``length`` samples, or zero-pad a shorter sound at both ends."""
    if (extra := len(x) - length) >= 0:
        return x[extra // 2 : extra // 2 + length]
    return torch.nn.functional.pad(x, (-extra // 2, -extra - -extra // 2))
