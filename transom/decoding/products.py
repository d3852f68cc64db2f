"""Linear layers with weights prepacked for repeated inference."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.layers.dispatch import operation

Activation = Callable[[Tensor], Tensor]


@runtime_checkable
class Product(Protocol):
    """A linear layer y = f(x W^T + b), with an optional activation f."""

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Return f(x W^T + b), with ``plus`` added if given."""
        ...


class Plain:
    """Linear layer computed by ``torch.nn.functional.linear``, without prepacking."""

    def __init__(
        self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None = None, after: Activation | None = None
    ) -> None:
        """Store weight, bias and activation."""
        self.weight, self.bias, self.after = weight, bias, after

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Return f(x W^T + b), with ``plus`` added if given."""
        y = F.linear(x, self.weight, self.bias)
        if self.after is not None:
            y = self.after(y)
        return y if plus is None else plus + y


STEP_ROWS = 32
"""Typical number of rows of x in a decoding step."""

READING_ROWS = 2048
"""Typical number of rows of x when whole texts are encoded."""


@operation("packed_linear")
def make_product(weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None, after: Activation | None, rows: int) -> Product:
    """Build a linear layer with an optional activation, optimized for about ``rows`` rows of x; it accepts any number."""
    return Plain(weight, bias, after)


class Arithmetic(NamedTuple):
    """Builds linear layers for one use.

    Attributes:
        rows: expected number of rows of x.
        dtype: dtype of the activations.
    """

    rows: int
    dtype: torch.dtype

    def make(self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None, after: Activation | None = None) -> Product:
        """Build a linear layer."""
        return make_product(weight, bias, after, self.rows)
