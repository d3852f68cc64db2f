"""Values of one block that others of its stack go on with."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config import bricks


class ValueResidual(nn.Module):
    """Values mixed with those of the stack's first block: V' = lambda_1 V_1 + lambda_2 V (Zhou et al. 2024)."""

    def __init__(self, brick: bricks.ValueResidual) -> None:
        """Make lambda_1 and lambda_2 (``weight``), which are learned or stay."""
        super().__init__()
        pair = brick.first, brick.own
        self.weight: nn.Parameter | tuple[float, float] = nn.Parameter(torch.tensor(pair)) if brick.kind == "learned" else pair

    def forward(
        self, first: Float[Tensor, "batch kv_heads key d_value"], own: Float[Tensor, "batch kv_heads key d_value"]
    ) -> Float[Tensor, "batch kv_heads key d_value"]:
        """Mix the first block's values and a block's own."""
        of_first, of_own = self.weight
        return of_first * first + of_own * own


@dataclass
class FirstValues:
    """The first block's values in one pass through a stack.

    Attributes:
        v: they, of the tokens that this pass reads; None before the first block.
    """

    v: Float[Tensor, "batch kv_heads key d_value"] | None = None


@dataclass(frozen=True)
class Values:
    """What a block of such a stack does with its values.

    Attributes:
        first: those of the first block in this pass.
        mix: how the block mixes them with its own; None in the first block, which leaves its values to the others.
    """

    first: FirstValues
    mix: ValueResidual | None = None

    def __call__(self, own: Float[Tensor, "batch kv_heads key d_value"]) -> Float[Tensor, "batch kv_heads key d_value"]:
        """Give the values that the block attends to."""
        if self.mix is None:
            self.first.v = own
            return own
        assert self.first.v is not None, "the first block comes first"
        return self.mix(self.first.v, own)
