"""How a sub-layer joins the residual stream: the wiring of sum, dropout and norm."""

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transom.layers.dropout import Dropout
from transom.layers.norm import Norm
from transom.layers.tap import Scope, scope

SubLayer = Callable[[Tensor], Tensor]


class Residual(nn.Module):
    """What every wiring has: a norm and a dropout."""

    def __init__(self, make_norm: Callable[[], Norm], dropout: float) -> None:
        """Make a norm; ``dropout`` is the probability of zeroing an element of the sub-layer's output."""
        super().__init__()
        self.norm = make_norm()
        self.dropout = Dropout(dropout)

    def before(self, x: Float[Tensor, "rows query d_model"]) -> Float[Tensor, "rows query d_model"]:
        """Give what the sub-layer reads of the stream."""
        return self.norm(x)


class PostNorm(Residual):
    """x' = Norm(x + Dropout(f(x))) (Vaswani et al. 2017, section 5.4)."""

    def before(self, x: Float[Tensor, "rows query d_model"]) -> Float[Tensor, "rows query d_model"]:
        """Give the stream itself."""
        return x

    def forward(
        self, x: Float[Tensor, "rows query d_model"], f: SubLayer, taps: Scope | None = None, real: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "rows query d_model"]:
        """Add the sub-layer's output to ``x`` and normalise the sum."""
        return self.norm(self.dropout.add(x, f(x)), scope(taps, "norm"), real)


class PreNorm(Residual):
    """x' = x + Dropout(f(Norm(x))) (Xiong et al. 2020, figure 1b)."""

    def forward(
        self, x: Float[Tensor, "rows query d_model"], f: SubLayer, taps: Scope | None = None, real: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "rows query d_model"]:
        """Add the sub-layer's output on the normalised input to ``x``."""
        return self.dropout.add(x, f(self.norm(x, scope(taps, "norm"), real)))


class Sandwich(Residual):
    """x' = x + Dropout(Norm_out(f(Norm(x)))) (Ding et al. 2021; Gemma Team 2024)."""

    def __init__(self, make_norm: Callable[[], Norm], dropout: float) -> None:
        """Make both norms."""
        super().__init__(make_norm, dropout)
        self.norm_out = make_norm()

    def forward(
        self, x: Float[Tensor, "rows query d_model"], f: SubLayer, taps: Scope | None = None, real: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "rows query d_model"]:
        """Add the normalised output of the sub-layer on the normalised input to ``x``."""
        return self.dropout.add(x, self.norm_out(f(self.norm(x, scope(taps, "norm"), real)), scope(taps, "norm_out"), real))


WIRING: dict[str, type[PostNorm] | type[PreNorm] | type[Sandwich]] = {"post": PostNorm, "pre": PreNorm, "sandwich": Sandwich}
"""The wirings by the name they have in a recipe (``norm_placement``); "parallel" is another block."""
