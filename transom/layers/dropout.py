"""Dropout with masks from random bytes, because on a CPU generating random floats would dominate the cost of dropout."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.layers.dispatch import operation

BYTE, WORD = 2**8, 2**32
"""Number of different values of one byte, and of four bytes. Dropout probabilities below 1/256 are sampled with four bytes."""


def round_probability(p: float) -> float:
    """Round a probability below 1 to a multiple of 1/256, the resolution of a random byte; if it is at most 1/512, of 2^-32 instead."""
    levels = BYTE if round(p * BYTE) else WORD
    return min(round(p * levels), levels - 1) / levels


def draw_dropout_mask(x: Float[Tensor, "*axes"], p: float) -> Float[Tensor, "*axes"]:
    """Draw a dropout mask: 1 / (1 - p) with probability 1 - p, else 0, with the shape and dtype of ``x``.

    One 64-bit random number yields eight elements, or two if ``p`` is below 1/256.
    """
    n = x.numel()
    levels, dtype = (BYTE, torch.int8) if p >= 1 / BYTE else (WORD, torch.int32)
    words = torch.empty(-(-n * dtype.itemsize // 8), dtype=torch.int64).random_(-(2**63), None)
    keep = words.view(dtype)[:n].lt_(round((1 - p) * levels) - levels // 2)
    return keep.to(x.dtype).mul_(1 / (1 - p)).view(x.shape)


@operation("dropout_add")
def add_masked(residual: Float[Tensor, "*axes"], x: Float[Tensor, "*axes"], mask: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Compute residual + x * mask."""
    return residual + x * mask


def dropout(x: Float[Tensor, "*axes"], p: float, training: bool) -> Float[Tensor, "*axes"]:
    """Zero elements with probability ``p`` and scale the others by 1 / (1 - p), in training only (Srivastava et al. 2014).

    On a CPU ``p`` is first rounded by ``round_probability``.
    """
    if not training or round_probability(p) == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    return x * draw_dropout_mask(x, round_probability(p))


def dropout_add(residual: Float[Tensor, "*axes"], x: Float[Tensor, "*axes"], p: float, training: bool) -> Float[Tensor, "*axes"]:
    """Compute ``residual + dropout(x, p, training)``."""
    if not training or round_probability(p) == 0 or x.device.type != "cpu":
        return residual + dropout(x, p, training)
    return add_masked(residual, x, draw_dropout_mask(x, round_probability(p)))


class Dropout(nn.Module):
    """Module that applies ``dropout`` with a fixed probability ``p``."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Apply dropout in training; return ``x`` in evaluation."""
        return dropout(x, self.p, self.training)

    def add(self, residual: Float[Tensor, "*axes"], x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return ``residual + dropout(x)``."""
        return dropout_add(residual, x, self.p, self.training)
