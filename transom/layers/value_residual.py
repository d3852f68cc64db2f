"""Value residual: later blocks mix the values of the stack's first block with their own (Zhou et al. 2024)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config import bricks


class FirstValues(NamedTuple):
    """Values of the first block in one pass, and the mixing weights of a later block.

    Attributes:
        values: V_1.
        weights: lambda_1 and lambda_2, as a tensor if learned, else as two numbers.
    """

    values: Float[Tensor, "batch kv_heads key d_value"]
    weights: Float[Tensor, "2"] | tuple[float, float]

    def mix(self, own: Float[Tensor, "batch kv_heads key d_value"]) -> Float[Tensor, "batch kv_heads key d_value"]:
        """Return lambda_1 V_1 + lambda_2 V."""
        of_first, of_own = self.weights
        return of_first * self.values + of_own * own


class ValueResidual(nn.Module):
    """V' = lambda_1 V_1 + lambda_2 V, with V_1 the values of the stack's first block (Zhou et al. 2024)."""

    def __init__(self, brick: bricks.ValueResidual) -> None:
        """Initialize lambda_1 and lambda_2 (``weight``), learned or fixed."""
        super().__init__()
        pair = brick.first, brick.own
        self.weight: nn.Parameter | tuple[float, float] = nn.Parameter(torch.tensor(pair)) if brick.kind == "learned" else pair

    def forward(self, first: Float[Tensor, "batch kv_heads key d_value"]) -> FirstValues:
        """Return V_1 with this block's mixing weights, for ``Attention``."""
        return FirstValues(first, self.weight)
