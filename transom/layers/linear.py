"""Linear layer, for whose training there may be a kernel."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.layers.dispatch import operation


@operation("linear")
def apply_linear(
    x: Float[Tensor, "*axes d_in"], weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, "d_out"] | None
) -> Float[Tensor, "*axes d_out"]:
    """Compute x W^T + b."""
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """``torch.nn.Linear``, computed by the operation ``linear``."""

    def forward(self, x: Float[Tensor, "*axes d_in"]) -> Float[Tensor, "*axes d_out"]:
        """Compute x W^T + b."""
        return apply_linear(x, self.weight, self.bias)
