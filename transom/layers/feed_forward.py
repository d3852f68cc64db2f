"""The position-wise feed-forward network."""

from jaxtyping import Float
from torch import Tensor, nn

from transom.config.model import Relu
from transom.layers.activation import relu
from transom.layers.dropout import Dropout
from transom.layers.tap import Scope, tap


class FeedForward(nn.Module):
    """Two linear maps with a rectifier between: FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2).

    W_1 is ``up`` and W_2 is ``down``; PyTorch keeps them transposed.
    """

    def __init__(self, brick: Relu, d_model: int, d_ff: int, dropout: float) -> None:
        """Make the maps d_model to d_ff and back; ``dropout`` acts on the hidden units."""
        super().__init__()
        self.up = nn.Linear(d_model, d_ff, brick.bias)
        self.down = nn.Linear(d_ff, d_model, brick.bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "*axes d_model"], taps: Scope | None = None) -> Float[Tensor, "*axes d_model"]:
        """Transform each token on its own."""
        hidden = relu(self.up(x))
        hidden = tap(taps, "hidden", hidden)
        return self.down(self.dropout(hidden))
