"""Log-mel spectrograms."""

from functools import lru_cache

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

DYNAMIC_RANGE_DECADES = 8
"""Number of powers of ten between the maximum and the minimum power in a spectrogram. Eight of them are 80 dB."""


def hz_to_mel(hertz: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Convert frequencies in Hz to the mel scale, 2595 log10(1 + f / 700) (O'Shaughnessy 1987)."""
    return 2595 * torch.log10(1 + hertz / 700)


@lru_cache(maxsize=8)
def mel_filter_bank(rate: int, n_fft: int, n_mels: int) -> Float[Tensor, "n_mels frequencies"]:
    """Return triangular filters over the FFT frequencies, evenly spaced on the mel scale from 0 to half the sampling rate.

    H_m(f) = max(0, min((f - f_{m-1}) / (f_m - f_{m-1}), (f_{m+1} - f) / (f_{m+1} - f_m))) with mel(f_m) = m mel(rate / 2) / (n_mels + 1)
    (Davis & Mermelstein 1980). Every triangle is at least two FFT bins wide, so that it covers at least one bin.

    Args:
        rate: sampling rate in Hz.
        n_fft: FFT window length in samples.
        n_mels: number of filters.
    """
    max_mel = hz_to_mel(torch.tensor(rate / 2, dtype=torch.float64))
    edges = 700 * (10 ** (torch.linspace(0, 1, n_mels + 2, dtype=torch.float64) * max_mel / 2595) - 1)
    frequency = torch.arange(n_fft // 2 + 1, dtype=torch.float64) * rate / n_fft
    center, step = edges[1:-1, None], rate / n_fft
    below = (frequency - center) / (edges[1:-1] - edges[:-2]).clamp(min=step)[:, None]
    above = (center - frequency) / (edges[2:] - edges[1:-1]).clamp(min=step)[:, None]
    return (1 + torch.minimum(below, above)).clamp(min=0).float()


def log_mel_spectrogram(x: Float[Tensor, "samples"], rate: int, n_fft: int, size: int) -> UInt8[Tensor, "1 size size"]:
    """Return the square log-mel spectrogram of a sound, quantized to 8 bits.

    S[m, t] = sum_f H_m(f) |sum_n w[n] x[n + t hop - n_fft / 2] exp(-2 pi i f n / n_fft)|^2, with w the periodic Hann window and
    hop = samples / size. The result is 255 (1 + max(-8, log10(S / max S)) / 8), rounded. One step is 80 / 255 dB, 255 is the maximum of S,
    and values 80 dB or more below it are 0. The spectrogram of silence is 0 everywhere.

    Args:
        x: the samples of the sound; their number is a multiple of ``size``.
        rate: sampling rate in Hz.
        n_fft: FFT window length in samples; an even number.
        size: number of mel bands and of frames.
    """
    padded = torch.nn.functional.pad(x, (n_fft // 2, n_fft // 2))
    frames = padded.unfold(0, n_fft, len(x) // size)[:size] * torch.hann_window(n_fft)
    power = mel_filter_bank(rate, n_fft, size) @ torch.fft.rfft(frames).abs().square().T
    loudest = power.max()
    if loudest <= 0:
        return torch.zeros(1, size, size, dtype=torch.uint8)
    decades = torch.log10((power / loudest).clamp(min=10.0**-DYNAMIC_RANGE_DECADES))
    return (255 * (1 + decades / DYNAMIC_RANGE_DECADES)).round().clamp(0, 255).to(torch.uint8)[None]
