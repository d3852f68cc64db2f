"""Frequencies of rotary positions, and their scalings for texts longer than those of training (``config/rope_scaling.py``)."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transom.config import rope_scaling as kinds
from transom.config.component_registry import build, implements


class RotaryFrequencies(NamedTuple):
    """Frequencies of the pairs of dimensions.

    Attributes:
        theta: radians per position, in float64; per text length if the frequencies depend on it.
        scale: factor by which cosines and sines are multiplied.
    """

    theta: Float[Tensor, "*lengths pairs"]
    scale: float = 1.0


class RotaryWidth(NamedTuple):
    """Values that a scaling depends on besides its own fields.

    Attributes:
        base: base of the unscaled frequencies (``rope_theta``).
        width: number of rotated dimensions of a head, an even number.
        max_seq_len: longest sequence of the model, in tokens.
        lengths: length of each text; all are ``max_seq_len`` if a scalar.
    """

    base: float
    width: int
    max_seq_len: int
    lengths: Int[Tensor, "*lengths"]

    def theta(self, base: float | Float[Tensor, "*lengths"] | None = None) -> Float[Tensor, "*lengths pairs"]:
        """Return base^(-2k / width) for each pair k (Su et al. 2021, eq. 15)."""
        exponent = torch.arange(0, self.width, 2, dtype=torch.float64, device=self.lengths.device) / self.width
        base = self.base if base is None else base
        return base[..., None] ** -exponent if isinstance(base, Tensor) else base**-exponent

    def ntk_base(self, factor: float | Float[Tensor, "*lengths"]) -> float | Float[Tensor, "*lengths"]:
        """Return the base with which the slowest pair rotates ``factor`` times slower; the only pair of width 2 is always unchanged."""
        return self.base * factor ** (self.width / (self.width - 2)) if self.width > 2 else self.base


def rotary_frequencies(
    scaling: kinds.RopeScalingConfig, base: float, width: int, max_seq_len: int, lengths: Int[Tensor, "*lengths"] | None = None
) -> RotaryFrequencies:
    """Return the rotary frequencies and the factor of cosines and sines.

    Args:
        scaling: the scaling, whose docstring has the equation.
        base: base of the unscaled frequencies (``rope_theta``).
        width: number of rotated dimensions of a head, an even number.
        max_seq_len: longest sequence of the model, in tokens.
        lengths: length of each text, for scalings that depend on it; None for texts of ``max_seq_len`` tokens.
    """
    lengths = torch.tensor(max_seq_len) if lengths is None else lengths
    found: RotaryFrequencies = build(scaling, RotaryWidth(base, width, max_seq_len, lengths))
    return found


@implements(kinds.NoScalingConfig)
def unscaled(c: kinds.NoScalingConfig, rotary: RotaryWidth) -> RotaryFrequencies:
    """Compute theta_k."""
    return RotaryFrequencies(rotary.theta())


@implements(kinds.LinearScalingConfig)
def linear(c: kinds.LinearScalingConfig, rotary: RotaryWidth) -> RotaryFrequencies:
    """Compute theta_k / factor."""
    return RotaryFrequencies(rotary.theta() / c.factor)


@implements(kinds.NtkScalingConfig)
def ntk(c: kinds.NtkScalingConfig, rotary: RotaryWidth) -> RotaryFrequencies:
    """Compute theta_k of the larger base."""
    return RotaryFrequencies(rotary.theta(rotary.ntk_base(c.factor)))


@implements(kinds.DynamicScalingConfig)
def dynamic(c: kinds.DynamicScalingConfig, rotary: RotaryWidth) -> RotaryFrequencies:
    """Compute theta_k of the base that belongs to each length."""
    original = c.trained_length(rotary.max_seq_len)
    lengths = rotary.lengths.clamp(min=original).double()
    return RotaryFrequencies(rotary.theta(rotary.ntk_base(c.factor * lengths / original - (c.factor - 1))))


@implements(kinds.YarnScalingConfig)
def yarn(c: kinds.YarnScalingConfig, rotary: RotaryWidth) -> RotaryFrequencies:
    """Compute frequencies between theta_k and theta_k / factor, by a ramp over k."""
    theta, original = rotary.theta(), c.trained_length(rotary.max_seq_len)

    def pair_index(rotations: float) -> float:
        """Return the (fractional) index of the pair of dimensions that rotates this many times over the original length."""
        return rotary.width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rotary.base))

    def sharpening(s: float) -> float:
        return 0.1 * s * math.log(c.factor) + 1

    low, high = pair_index(c.beta_fast), pair_index(c.beta_slow)
    if c.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary.width - 1)
    pairs = torch.arange(rotary.width // 2, dtype=torch.float64, device=theta.device)
    ramp = ((pairs - low) / (high - low if high > low else 1e-3)).clamp(0, 1)
    scale = c.attention_factor
    if scale is None:
        scale = sharpening(1) if c.mscale is None or c.mscale_all_dim is None else sharpening(c.mscale) / sharpening(c.mscale_all_dim)
    return RotaryFrequencies(theta * (1 - ramp) + theta / c.factor * ramp, scale)


@implements(kinds.Llama3ScalingConfig)
def llama3(c: kinds.Llama3ScalingConfig, rotary: RotaryWidth) -> RotaryFrequencies:
    """Compute frequencies between theta_k / factor and theta_k, by a ramp over the rotations."""
    theta = rotary.theta()
    rotations = c.trained_length(rotary.max_seq_len) * theta / (2 * math.pi)
    share = ((rotations - c.low_freq_factor) / (c.high_freq_factor - c.low_freq_factor)).clamp(0, 1)
    return RotaryFrequencies((1 - share) * theta / c.factor + share * theta)


@implements(kinds.LongRopeScalingConfig)
def longrope(c: kinds.LongRopeScalingConfig, rotary: RotaryWidth) -> RotaryFrequencies:
    """Compute theta_k over the factors that belong to each length."""
    theta, original = rotary.theta(), c.original_max_seq_len
    short, long = (torch.tensor(each, dtype=torch.float64, device=theta.device) for each in (c.short_factor, c.long_factor))
    factors = torch.where((rotary.lengths > original)[..., None], long, short)
    scale, factor = c.attention_factor, rotary.max_seq_len / original if c.factor is None else c.factor
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RotaryFrequencies(theta / factors, scale)
