"""Synthesizes tones, chirps, noise and vowels. The random parameters of a sound depend only on its seed, split and index."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from transom.data.sampler import stateless_uniform

FORMANTS = {
    "a": (730.0, 1090.0, 2440.0),
    "e": (530.0, 1840.0, 2480.0),
    "i": (270.0, 2290.0, 3010.0),
    "o": (570.0, 840.0, 2410.0),
    "u": (300.0, 870.0, 2240.0),
}
"""Mean formant frequencies of five English vowels of male speakers, in Hz (Peterson & Barney 1952, table II)."""

BANDWIDTHS = (60.0, 90.0, 150.0)
"""Bandwidths of the three formants of every vowel, in Hz."""

CLASSES = ("tone", "rising", "falling", "noise", *(f"vowel-{name}" for name in FORMANTS))

SPLIT_RESIDUES = {"train": (0, 1, 2), "valid": (3,), "test": (4,)}
"""Indices modulo 5 of the speakers and pitches in each split. They make the speakers and pitches of the splits disjoint."""

N_SPEAKERS, N_PITCHES = 60, 90
"""Number of speakers (vocal tract lengths), and number of pitches, of all splits together."""

NOISE_STREAM = 1
"""Last part of the random key from which the noise of a sound is sampled."""


class SoundParameters(NamedTuple):
    """Random parameters of a sound.

    Attributes:
        scale: factor of all formant frequencies, which characterizes the speaker.
        pitch: relative pitch, from 0 for the lowest pitch to almost 1 for the highest.
        uniforms: ten uniform numbers in [0, 1) that determine all other random properties of the sound.
        noise: uniform noise from -1 to 1, one number per sample.
    """

    scale: float
    pitch: float
    uniforms: list[float]
    noise: Float[Tensor, "samples"]


def sample_parameters(split: str, number: int, seed: int, length: int) -> SoundParameters:
    """Sample the parameters of a sound.

    Args:
        split: one of ``SPLIT_RESIDUES``.
        number: index of the sound in its split.
        seed: random seed.
        length: number of samples of the sound.
    """
    key = (seed, list(SPLIT_RESIDUES).index(split), number)
    numbers, rest = stateless_uniform(12, *key)[0], stateless_uniform(length, *key, NOISE_STREAM)[0]
    own = SPLIT_RESIDUES[split]

    def grid_index(uniform: float, n: int) -> int:
        group, which = divmod(int(uniform * (n // 5 * len(own))), len(own))
        return 5 * group + own[which]

    scale = 0.92 + 0.2 * grid_index(numbers[0], N_SPEAKERS) / N_SPEAKERS
    return SoundParameters(scale, grid_index(numbers[1], N_PITCHES) / N_PITCHES, numbers[2:12].tolist(), torch.from_numpy(2 * rest - 1))


def synthesize(label: str, split: str, number: int, seed: int, rate: int, length: int) -> Float[Tensor, "length"]:
    """Synthesize a sound of a class.

    The sound consists of a source signal, which is faded in and out at random times, and of background noise. Its volume is random.

    Args:
        label: one of ``CLASSES``.
        split: one of ``SPLIT_RESIDUES``.
        number: index of the sound in its split.
        seed: random seed.
        rate: sampling rate in Hz.
        length: number of samples.
    """
    parameters = sample_parameters(split, number, seed, length)
    t = torch.arange(length, dtype=torch.float64) / rate
    gain, lasts, begins, snr = parameters.uniforms[:4]
    sound = source_signal(label, parameters, t, rate)
    sound = sound / sound.square().mean().sqrt()
    whole = length / rate
    start, end = begins * (0.4 - 0.4 * lasts) * whole, whole * (1 - (1 - begins) * (0.4 - 0.4 * lasts))
    fade = (torch.minimum(t - start, end - t) / 0.02).clamp(0, 1)
    mixed = sound * fade + parameters.noise * 10 ** (
        -1 - snr
    )  # uniform noise from -1 to 1 has power 1 / 3, so it is 25 to 45 dB below the sound
    return (mixed * (0.05 + 0.85 * gain) / mixed.abs().max()).float()


def source_signal(label: str, parameters: SoundParameters, t: Float[Tensor, "samples"], rate: int) -> Float[Tensor, "samples"]:
    """Return the source signal of a class, which is a sine of constant or gliding frequency, white noise, or a vowel.

    Args:
        label: one of ``CLASSES``.
        parameters: random parameters of the sound.
        t: time of each sample in seconds.
        rate: sampling rate in Hz.
    """
    low, phase, ratio = 220 * 8**parameters.pitch, 2 * math.pi * parameters.uniforms[4], 1.5 + 2.5 * parameters.uniforms[5]
    whole = len(t) / rate
    match label:
        case "tone":
            return torch.sin(2 * math.pi * low * t + phase)
        case "rising" | "falling":  # f(t) = low ratio^(t / whole), whose integral is the phase; falling is the same backward
            cycles = low * whole / math.log(ratio) * ratio ** (t / whole)
            rising = torch.sin(2 * math.pi * cycles + phase)
            return rising if label == "rising" else rising.flip(0)
        case "noise":
            return torch.roll(parameters.noise, len(t) // 2)
        case _:
            return synthesize_vowel(label.removeprefix("vowel-"), parameters, t, rate)


def synthesize_vowel(name: str, parameters: SoundParameters, t: Float[Tensor, "samples"], rate: int) -> Float[Tensor, "samples"]:
    """Synthesize a vowel as sum_k |H(k f_0)| / k sin(k phi(t)) with phi' = 2 pi f_0 (1 + d sin(2 pi v t)).

    The last factor is a slight vibrato of depth d, at most 1%, and rate v, 4 to 7 Hz. H is the product of the formant resonances,
    |H_F(f)| = (F^2 + b^2) / (sqrt((f - F)^2 + b^2) sqrt((f + F)^2 + b^2)) with b half the bandwidth (Fant 1960). The factor 1 / k combines
    the glottal source, which falls by 12 dB per octave, and the lip radiation, which rises by 6 dB per octave.

    Args:
        name: one of ``FORMANTS``.
        parameters: random parameters of the sound.
        t: time of each sample in seconds.
        rate: sampling rate in Hz.
    """
    pitch, depth, speed = 90 * 2.8**parameters.pitch, 0.01 * parameters.uniforms[6], 4 + 3 * parameters.uniforms[7]
    phi = 2 * math.pi * pitch * (t - depth / (2 * math.pi * speed) * torch.cos(2 * math.pi * speed * t))
    k = torch.arange(1, int(min(5000.0, 0.45 * rate) / pitch) + 1, dtype=torch.float64)
    amplitude = 1 / k
    for formant, bandwidth in zip(FORMANTS[name], BANDWIDTHS, strict=True):
        f, center, b = k * pitch, formant * parameters.scale, bandwidth / 2
        amplitude = amplitude * (center**2 + b**2) / (((f - center) ** 2 + b**2) * ((f + center) ** 2 + b**2)).sqrt()
    phasor = torch.exp(1j * phi)
    total, power = torch.zeros_like(t), torch.ones_like(phasor)
    for a in amplitude.tolist():
        power = power * phasor
        total += a * power.imag
    return total
