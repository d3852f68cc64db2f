"""Values of a stack's first block that later blocks mix with their own."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config import bricks


class FirstValues(NamedTuple):
    """The first block's values in one pass, and what a later block weighs them and its own by.

    Attributes:
        values: V_1.
        weights: lambda_1 and lambda_2, as one tensor or as two numbers.
    """

    values: Float[Tensor, "batch kv_heads key d_value"]
    weights: Float[Tensor, "2"] | tuple[float, float]

    def mix(self, own: Float[Tensor, "batch kv_heads key d_value"]) -> Float[Tensor, "batch kv_heads key d_value"]:
        """Return lambda_1 V_1 + lambda_2 V."""
        of_first, of_own = self.weights
        return of_first * self.values + of_own * own


class ValueResidual(nn.Module):
    """Values mixed with those of the stack's first block: V' = lambda_1 V_1 + lambda_2 V (Zhou et al. 2024)."""

    def __init__(self, brick: bricks.ValueResidual) -> None:
        """Make lambda_1 and lambda_2 (``weight``), which are learned or stay."""
        super().__init__()
        pair = brick.first, brick.own
        self.weight: nn.Parameter | tuple[float, float] = nn.Parameter(torch.tensor(pair)) if brick.kind == "learned" else pair

    def forward(self, first: Float[Tensor, "batch kv_heads key d_value"]) -> FirstValues:
        """Return what attention mixes with its own values."""
        return FirstValues(first, self.weight)
