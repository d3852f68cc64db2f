"""Normalisation of a token's vector."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.bricks import LayerNorm as LayerNormBrick
from transom.config.bricks import NoNorm as NoNormBrick
from transom.config.bricks import RmsNorm as RmsNormBrick
from transom.layers.tap import Scope, tap


class LayerNorm(nn.Module):
    """Layer normalisation: gamma * (x - mean) / sqrt(variance + eps) + beta over d_model (Ba et al. 2016, eq. 4).

    The variance is the biased one. Statistics are in float32 at least, whatever the type of ``x``.
    """

    def __init__(self, brick: LayerNormBrick, d_model: int) -> None:
        """Make gamma (``weight``, ones) and beta (``bias``, zeros, or none)."""
        super().__init__()
        self.eps = brick.eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if brick.bias else None

    def forward(self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None) -> Float[Tensor, "*axes d_model"]:
        """Normalise each vector."""
        x = tap(taps, "x", x)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class RmsNorm(nn.Module):
    """Root-mean-square normalisation: gamma * x / sqrt(mean(x^2) + eps) over d_model (Zhang & Sennrich 2019, eq. 4).

    Statistics are in float32 at least, whatever the type of ``x``.
    """

    def __init__(self, brick: RmsNormBrick, d_model: int) -> None:
        """Make gamma (``weight``, ones)."""
        super().__init__()
        self.eps = brick.eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None) -> Float[Tensor, "*axes d_model"]:
        """Normalise each vector."""
        x = tap(taps, "x", x)
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class NoNorm(nn.Module):
    """The vector as it is."""

    def __init__(self, brick: NoNormBrick, d_model: int) -> None:
        """Make nothing."""
        super().__init__()

    def forward(self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None) -> Float[Tensor, "*axes d_model"]:
        """Pass ``x`` on."""
        x = tap(taps, "x", x)
        return x


Norm = LayerNorm | RmsNorm | NoNorm

NORMS: dict[str, Callable[..., Norm]] = {"layernorm": LayerNorm, "rmsnorm": RmsNorm, "none": NoNorm}
"""The norms by the ``kind`` that they have in a recipe."""


def build_norm(brick: LayerNormBrick | RmsNormBrick | NoNormBrick, width: int) -> Norm:
    """Build the norm that a brick describes, for vectors of ``width`` columns."""
    return NORMS[brick.kind](brick, width)
