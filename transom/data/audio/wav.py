"""WAV files to waveforms: PCM of 8 to 32 bits, mono or stereo, brought to one sample rate."""

import math
import struct
import wave
from io import BytesIO

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.errors import DataError

MAX_RATE = 384_000
"""Samples a second; the fastest audio converters record this many."""

Waveform = Float[Tensor, "samples"]


def read_wav(data: bytes, place: str) -> tuple[Waveform, int]:
    """Decode a WAV file; stereo becomes the mean of both channels.

    Args:
        data: the file.
        place: where it is, for people.

    Returns:
        Samples from -1 to 1, and their number a second.

    Raises:
        DataError: the file is not WAV, is truncated, has no samples, or is not mono or stereo PCM.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise DataError(f"{place}: expected a WAV file, found {'another format' if data else 'an empty file'}; convert or remove it")
    try:
        with wave.open(BytesIO(data)) as file:
            channels, width, rate, n = file.getnchannels(), file.getsampwidth(), file.getframerate(), file.getnframes()
            frames = file.readframes(n)
    except (wave.Error, EOFError, struct.error, ValueError, RuntimeError, ZeroDivisionError, OverflowError) as error:
        raise DataError(f"{place}: expected WAV with integer PCM samples, found {error or 'a truncated file'}; convert it") from error
    if not (1 <= width <= 4 and 1 <= channels <= 2 and 1 <= rate <= MAX_RATE):
        found = f"{8 * width} bits, {channels:,} channels, {rate:,} Hz"
        raise DataError(f"{place}: expected 8 to 32 bits, mono or stereo, at most {MAX_RATE:,} Hz, found {found}; convert it")
    if len(frames) != n * width * channels:
        raise DataError(f"{place}: expected {n * width * channels:,} bytes of samples, found {len(frames):,}: a truncated file; replace it")
    if not n:
        raise DataError(f"{place}: expected samples, found none; remove the file")
    octets = np.frombuffer(frames, np.uint8).reshape(n, channels, width)
    if width == 1:
        return torch.from_numpy((octets[..., 0].astype(np.float32) - 128) / 128).mean(1), rate
    padded = np.zeros((n, channels, 4), np.uint8)
    padded[..., 4 - width :] = octets  # little-endian: low bytes first
    return torch.from_numpy((padded.view("<i4")[..., 0] / 2.0**31).astype(np.float32)).mean(1), rate


def resample(x: Waveform, old: int, new: int) -> Float[Tensor, "resampled"]:
    """Change the sample rate by the discrete Fourier transform: frequencies below both Nyquist limits stay, others vanish.

    The waveform is followed by silence, so that its end does not leak into its start.
    """
    if old == new:
        return x
    up, down = new // math.gcd(old, new), old // math.gcd(old, new)
    n = -(-(len(x) + old // 20) // down) * down
    m = n // down * up
    kept = torch.fft.rfft(F.pad(x, (0, n - len(x))))[: (min(n, m) + 1) // 2]
    wanted = max(1, round(len(x) * new / old))
    return torch.fft.irfft(kept, m)[:wanted] * (m / n)


def fit_length(x: Waveform, n: int) -> Float[Tensor, "{n}"]:
    """Take the middle n samples; a shorter waveform is centered in silence."""
    missing = n - len(x)
    return F.pad(x, (missing // 2, missing - missing // 2)) if missing >= 0 else x[-missing // 2 :][:n]
