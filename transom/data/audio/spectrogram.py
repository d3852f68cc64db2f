"""Log-mel spectrograms, and their masking in training."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

FLOOR = 1e-5
"""Energy added before the logarithm, so that silence has one."""


@lru_cache(maxsize=8)
def mel_filters(n_mels: int, window: int, rate: int) -> Float[Tensor, "mels bins"]:
    """Compute triangular filters, equally spaced on the mel scale m(f) = 2595 log10(1 + f / 700) from 0 to the Nyquist frequency.

    Filter i rises from edge f_i to 1 at f_{i+1} and falls to 0 at f_{i+2}.
    """
    top = 2595 * np.log10(1 + rate / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, n_mels + 2) / 2595) - 1)
    bins = np.arange(window // 2 + 1) * (rate / window)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return torch.from_numpy(np.maximum(0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)))).float()


def log_mel(x: Float[Tensor, "samples"], n_mels: int, n_frames: int, window: int, rate: int) -> Float[Tensor, "mels frames"]:
    """Compute S[m, t] = log(10^-5 + sum_k H[m, k] |sum_n w[n] x[t h + n - N / 2] e^(-2 pi i k n / N)|^2).

    w is the periodic Hann window of N = ``window`` samples, H are the mel filters, and the hop is h = floor(samples / n_frames);
    outside of the waveform is silence.
    """
    hann = torch.hann_window(window)
    spectrum = torch.stft(x, window, len(x) // n_frames, window=hann, center=True, pad_mode="constant", return_complex=True)
    return (mel_filters(n_mels, window, rate) @ spectrum[:, :n_frames].abs().square() + FLOOR).log()


def spec_augment(
    spectra: Float[Tensor, "sounds channels mels frames"],
    *,
    masks: int,
    width: int,
    fill: float,
    seed: int,
    epoch: int,
    samples: Sequence[int],
) -> Float[Tensor, "sounds channels mels frames"]:
    """Mask random bands of frequencies and of time (SpecAugment, Park et al. 2019, section 2).

    Each mask is of w rows or columns, w uniform from 0 to ``width``, its start uniform. The draws are a pure function of
    (seed, epoch, sample).
    """
    spectra = spectra.clone()
    key = np.random.SeedSequence([seed, epoch, 2]).generate_state(2, np.uint64)
    for one, sample in zip(spectra, samples, strict=True):
        bits = np.random.Philox(key=key, counter=[0, 0, 0, sample]).random_raw(4 * masks)
        for number, (size, start) in enumerate(((bits >> np.uint64(11)) * 2.0**-53).reshape(-1, 2)):
            axis = 1 + number % 2
            wide = min(int(size * (width + 1)), one.shape[axis])
            one.narrow(axis, int(start * (one.shape[axis] - wide + 1)), wide).fill_(fill)
    return spectra
