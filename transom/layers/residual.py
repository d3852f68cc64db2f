"""The residual sum around a sub-layer, with its dropout and its norms."""

from jaxtyping import Float
from torch import Tensor, nn

from transom.config.architecture import Transformer
from transom.layers.dropout import Dropout
from transom.layers.norm import build_norm


class Residual(nn.Module):
    """A sub-layer's norm, and its sum with the stream: x + Dropout(y).

    Where the norm stands is the block's to say.
    """

    def __init__(self, config: Transformer) -> None:
        """Make norm and dropout."""
        super().__init__()
        self.norm = build_norm(config.norm, config.d_model)
        self.dropout = Dropout(config.dropout)

    def add(self, x: Float[Tensor, "rows query d_model"], y: Float[Tensor, "rows query d_model"]) -> Float[Tensor, "rows query d_model"]:
        """Return x + Dropout(y), on a CPU in one pass over memory."""
        return self.dropout.add(x, y)


class SandwichResidual(Residual):
    """The same with a second norm, of the sub-layer's output: x + Dropout(Norm_out(y))."""

    def __init__(self, config: Transformer) -> None:
        """Make both norms and the dropout."""
        super().__init__(config)
        self.norm_out = build_norm(config.norm, config.d_model)
