"""Value residual: later blocks mix the values of the stack's first block with their own (Zhou et al. 2024)."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config import components


class ValueResidualTerm(NamedTuple):
    """Values of the first block in one pass, and the mixing weights of a later block.

    Attributes:
        values: V_1.
        weights: lambda_1 and lambda_2, as a tensor if learned, else as two numbers.
    """

    values: Float[Tensor, "batch kv_heads key d_value"]
    weights: Float[Tensor, "2"] | tuple[float, float]

    def mix(self, own: Float[Tensor, "batch kv_heads key d_value"]) -> Float[Tensor, "batch kv_heads key d_value"]:
        """Return lambda_1 V_1 + lambda_2 V, where V is ``own``, the values of the later block."""
        lambda_1, lambda_2 = self.weights
        return lambda_1 * self.values + lambda_2 * own


class ValueResidual(nn.Module):
    """Value residual: V' = lambda_1 V_1 + lambda_2 V, with V_1 the values of the stack's first block (Zhou et al. 2024)."""

    def __init__(self, config: components.ValueResidualConfig) -> None:
        """Initialize lambda_1 and lambda_2 (``weight``), learned or fixed."""
        super().__init__()
        lambdas = config.lambda_1, config.lambda_2
        self.weight: nn.Parameter | tuple[float, float] = nn.Parameter(torch.tensor(lambdas)) if config.kind == "learned" else lambdas

    def forward(self, first: Float[Tensor, "batch kv_heads key d_value"]) -> ValueResidualTerm:
        """Return V_1 with this block's mixing weights, for ``Attention``."""
        return ValueResidualTerm(first, self.weight)
