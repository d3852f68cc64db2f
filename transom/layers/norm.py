"""Normalisation of a token's vector."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.model import LayerNorm as LayerNormBrick
from transom.layers.tap import Scope, tap


class LayerNorm(nn.Module):
    """Layer normalisation: gamma * (x - mean) / sqrt(variance + eps) + beta over d_model (Ba et al. 2016, eq. 4).

    The variance is the biased one. Statistics are in float32 at least, whatever the type of ``x``.
    """

    def __init__(self, brick: LayerNormBrick, d_model: int) -> None:
        """Make gamma (``weight``, ones) and beta (``bias``, zeros)."""
        super().__init__()
        self.eps = brick.eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None) -> Float[Tensor, "*axes d_model"]:
        """Normalise each vector."""
        x = tap(taps, "x", x)
        return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
