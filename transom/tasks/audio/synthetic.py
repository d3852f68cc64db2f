"""Synthesized sounds: tones, chirps, noise and vowels, each a pure function of (seed, part, number)."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from transom.data.sampler import draws

FORMANTS = {
    "a": (730.0, 1090.0, 2440.0),
    "e": (530.0, 1840.0, 2480.0),
    "i": (270.0, 2290.0, 3010.0),
    "o": (570.0, 840.0, 2410.0),
    "u": (300.0, 870.0, 2240.0),
}
"""Mean formant frequencies of five English vowels of male speakers, in Hz (Peterson & Barney 1952, table II)."""

BANDWIDTHS = (60.0, 90.0, 150.0)
"""Bandwidths of the formants, in Hz."""

CLASSES = ("tone", "rising", "falling", "noise", *(f"vowel-{name}" for name in FORMANTS))

PARTS = {"train": (0, 1, 2), "valid": (3,), "test": (4,)}
"""Indices modulo 5 of the pitches and speakers in each split, so that splits are disjoint."""

SPEAKERS, PITCHES = 60, 90
"""Total number of speakers (vocal tract lengths) and of pitches."""

NOISE = 1
"""Last part of the random key of the noise of a sound."""


class Drawn(NamedTuple):
    """Random parameters of a sound.

    Attributes:
        scale: factor of all formant frequencies, one per speaker.
        pitch: from 0 to 1, on a grid whose points are divided among the splits.
        free: ten uniform numbers in [0, 1).
        noise: uniform noise from -1 to 1, one number per sample.
    """

    scale: float
    pitch: float
    free: list[float]
    noise: Float[Tensor, "samples"]


def draw(part: str, number: int, seed: int, length: int) -> Drawn:
    """Sample the parameters of a sound."""
    key = (seed, list(PARTS).index(part), number)
    numbers, rest = draws(12, *key)[0], draws(length, *key, NOISE)[0]
    own = PARTS[part]

    def place(uniform: float, n: int) -> int:
        fifth, which = divmod(int(uniform * (n // 5 * len(own))), len(own))
        return 5 * fifth + own[which]

    scale = 0.92 + 0.2 * place(numbers[0], SPEAKERS) / SPEAKERS
    return Drawn(scale, place(numbers[1], PITCHES) / PITCHES, numbers[2:12].tolist(), torch.from_numpy(2 * rest - 1))


def synthesize(label: str, part: str, number: int, seed: int, rate: int, length: int) -> Float[Tensor, "length"]:
    """Synthesize a sound: its source signal, faded in and out at random times, at a random volume, with background noise.

    Args:
        label: one of ``CLASSES``.
        part: one of ``PARTS``.
        number: index of the sound in its split.
        seed: random seed.
        rate: sampling rate in Hz.
        length: number of samples.
    """
    drawn = draw(part, number, seed, length)
    t = torch.arange(length, dtype=torch.float64) / rate
    gain, lasts, begins, snr = drawn.free[:4]
    sound = source(label, drawn, t, rate)
    sound = sound / sound.square().mean().sqrt()
    whole = length / rate
    start, end = begins * (0.4 - 0.4 * lasts) * whole, whole * (1 - (1 - begins) * (0.4 - 0.4 * lasts))
    fade = (torch.minimum(t - start, end - t) / 0.02).clamp(0, 1)
    mixed = sound * fade + drawn.noise * 10 ** (-1 - snr)  # 15 to 35 dB below: uniform noise has a third of the power of its bounds
    return (mixed * (0.05 + 0.85 * gain) / mixed.abs().max()).float()


def source(label: str, drawn: Drawn, t: Float[Tensor, "samples"], rate: int) -> Float[Tensor, "samples"]:
    """Return the source signal: a sine of constant or gliding frequency, white noise, or a vowel."""
    low, phase, ratio = 220 * 8**drawn.pitch, 2 * math.pi * drawn.free[4], 1.5 + 2.5 * drawn.free[5]
    whole = len(t) / rate
    match label:
        case "tone":
            return torch.sin(2 * math.pi * low * t + phase)
        case "rising" | "falling":  # f(t) = low ratio^(t / whole), whose integral is the phase; falling is the same backward
            cycles = low * whole / math.log(ratio) * ratio ** (t / whole)
            rising = torch.sin(2 * math.pi * cycles + phase)
            return rising if label == "rising" else rising.flip(0)
        case "noise":
            return torch.roll(drawn.noise, len(t) // 2)
        case _:
            return vowel(label.removeprefix("vowel-"), drawn, t, rate)


def vowel(name: str, drawn: Drawn, t: Float[Tensor, "samples"], rate: int) -> Float[Tensor, "samples"]:
    """Return a vowel: sum_k |H(k f_0)| / k sin(k phi(t)), with phi' = 2 pi f_0 and a slight vibrato of f_0.

    H is the product of the formant resonances, |H_F(f)| = (F^2 + b^2) / (sqrt((f - F)^2 + b^2) sqrt((f + F)^2 + b^2)) with b half the
    bandwidth (Fant 1960); 1 / k combines the glottal source, -12 dB per octave, and lip radiation, +6 dB per octave.
    """
    pitch, depth, speed = 90 * 2.8**drawn.pitch, 0.01 * drawn.free[6], 4 + 3 * drawn.free[7]
    phi = 2 * math.pi * pitch * (t - depth / (2 * math.pi * speed) * torch.cos(2 * math.pi * speed * t))
    k = torch.arange(1, int(min(5000.0, 0.45 * rate) / pitch) + 1, dtype=torch.float64)
    amplitude = 1 / k
    for formant, bandwidth in zip(FORMANTS[name], BANDWIDTHS, strict=True):
        f, center, b = k * pitch, formant * drawn.scale, bandwidth / 2
        amplitude = amplitude * (center**2 + b**2) / (((f - center) ** 2 + b**2) * ((f + center) ** 2 + b**2)).sqrt()
    turn = torch.exp(1j * phi)
    total, power = torch.zeros_like(t), torch.ones_like(turn)
    for a in amplitude.tolist():
        power = power * turn
        total += a * power.imag
    return total
