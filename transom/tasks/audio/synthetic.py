"""Sounds that are synthesized: tones, chirps, noise and vowels; each a pure function of (seed, part, number)."""

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
"""Mean resonances of five English vowels of men, in Hz (Peterson & Barney 1952, table II)."""

BANDWIDTHS = (60.0, 90.0, 150.0)
"""Of these resonances, in Hz."""

CLASSES = ("tone", "rising", "falling", "noise", *(f"vowel-{name}" for name in FORMANTS))

PARTS = {"train": (0, 1, 2), "valid": (3,), "test": (4,)}
"""Which of every five neighboring pitches, and speakers, each part of the data has: none is in two."""

SPEAKERS, PITCHES = 60, 90
"""How many vocal tracts and how many pitches there are in all."""

NOISE = 1
"""Sets the draws of a sound's noise apart from all others of it."""


class Drawn(NamedTuple):
    """What is drawn for a sound.

    Attributes:
        scale: of all formants: the speaker's.
        pitch: from 0 to 1, on a grid of which each part of the data has its own places.
        free: ten numbers from 0 to 1.
        noise: a number from -1 to 1 for each sample.
    """

    scale: float
    pitch: float
    free: list[float]
    noise: Float[Tensor, "samples"]


def draw(part: str, number: int, seed: int, length: int) -> Drawn:
    """Draw what a sound is made from."""
    key = (seed, list(PARTS).index(part), number)
    numbers, rest = draws(12, *key)[0], draws(length, *key, NOISE)[0]
    own = PARTS[part]

    def place(uniform: float, n: int) -> int:
        fifth, which = divmod(int(uniform * (n // 5 * len(own))), len(own))
        return 5 * fifth + own[which]

    scale = 0.92 + 0.2 * place(numbers[0], SPEAKERS) / SPEAKERS
    return Drawn(scale, place(numbers[1], PITCHES) / PITCHES, numbers[2:12].tolist(), torch.from_numpy(2 * rest - 1))


def synthesize(label: str, part: str, number: int, seed: int, rate: int, length: int) -> Float[Tensor, "length"]:
    """Synthesize a sound: its source, faded in and out at a random place, at a random loudness, above a quiet noise.

    Args:
        label: one of ``CLASSES``.
        part: of the data, one of ``PARTS``.
        number: of the sound in its part.
        seed: of the draw.
        rate: samples a second.
        length: samples.
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
    """Return the sound itself: a sine of a steady or gliding frequency, white noise, or a vowel."""
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
    """Return sum_k |H(k f_0)| / k sin(k phi(t)), with phi' = 2 pi f_0 of a slight vibrato.

    H is the product of the speaker's resonances, |H_F(f)| = (F^2 + b^2) / (sqrt((f - F)^2 + b^2) sqrt((f + F)^2 + b^2)) with b half the
    bandwidth (Fant 1960); 1 / k is the glottal source's fall of 12 dB an octave and the lips' rise of 6.
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
