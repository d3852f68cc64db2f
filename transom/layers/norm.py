"""Normalisation of a token's vector."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config import bricks
from transom.layers.tap import Scope, tap


class Norm(nn.Module):
    """What every kind has, and what ``none`` is: the vector as it is."""

    def __init__(self, brick: Any, width: int) -> None:
        """Make what the brick describes for vectors of ``width`` columns."""
        super().__init__()

    def forward(self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None) -> Float[Tensor, "*axes d_model"]:
        """Normalise each vector."""
        x = tap(taps, "x", x)
        return x


class LayerNorm(Norm):
    """Layer normalisation: gamma * (x - mean) / sqrt(variance + eps) + beta over d_model (Ba et al. 2016, eq. 4).

    The variance is the biased one. Statistics are in float32 at least, whatever the type of ``x``.
    """

    def __init__(self, brick: bricks.LayerNorm, width: int) -> None:
        """Make gamma (``weight``, ones) and beta (``bias``, zeros, or none)."""
        super().__init__(brick, width)
        self.eps = brick.eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if brick.bias else None

    def forward(self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None) -> Float[Tensor, "*axes d_model"]:
        """Normalise each vector."""
        x = tap(taps, "x", x)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class RmsNorm(Norm):
    """Root-mean-square normalisation: gamma * x / sqrt(mean(x^2) + eps) over d_model (Zhang & Sennrich 2019, eq. 4).

    Statistics are in float32 at least, whatever the type of ``x``.
    """

    def __init__(self, brick: bricks.RmsNorm, width: int) -> None:
        """Make gamma (``weight``, ones)."""
        super().__init__(brick, width)
        self.eps = brick.eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None) -> Float[Tensor, "*axes d_model"]:
        """Normalise each vector."""
        x = tap(taps, "x", x)
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class DynamicTanh(Norm):
    """A bounded curve in a norm's place: gamma * tanh(alpha * x) + beta (Zhu et al. 2025, eq. 1)."""

    def __init__(self, brick: bricks.DynamicTanh, width: int) -> None:
        """Make gamma (``weight``, ones), beta (``bias``, zeros) and alpha."""
        super().__init__(brick, width)
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.alpha = nn.Parameter(torch.tensor(brick.alpha))

    def forward(self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None) -> Float[Tensor, "*axes d_model"]:
        """Bend each vector."""
        x = tap(taps, "x", x)
        return (torch.tanh(self.alpha * x) * self.weight + self.bias).to(x.dtype)


NORMS: dict[str, Callable[[Any, int], Norm]] = {"layernorm": LayerNorm, "rmsnorm": RmsNorm, "dyt": DynamicTanh, "none": Norm}
"""The norms by the ``kind`` that they have in a recipe."""


def build_norm(brick: bricks.AnyNorm, width: int) -> Norm:
    """Build the norm that a brick describes, for vectors of ``width`` columns."""
    return NORMS[brick.kind](brick, width)
