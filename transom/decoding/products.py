"""Linear maps made ready to be applied thousands of times."""

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
    """A linear map y = x W^T + b, with an activation behind it where it was made so."""

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Apply it and add ``plus``."""
        ...


class Plain:
    """The map as PyTorch applies it."""

    def __init__(
        self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None = None, after: Activation | None = None
    ) -> None:
        """Hold the weights."""
        self.weight, self.bias, self.after = weight, bias, after

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Apply it."""
        y = F.linear(x, self.weight, self.bias)
        if self.after is not None:
            y = self.after(y)
        return y if plus is None else plus + y


STEP_ROWS = 32
"""Rows of x in a step of a search."""

READING_ROWS = 2048
"""Rows of x where whole texts are read."""


@operation("packed_linear")
def make_product(weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None, after: Activation | None, rows: int) -> Product:
    """Make a linear map, with an activation behind it, for products of about ``rows`` rows; others work as well."""
    return Plain(weight, bias, after)


class Arithmetic(NamedTuple):
    """How products are made.

    Attributes:
        rows: of x, about.
        dtype: of what flows between them.
    """

    rows: int
    dtype: torch.dtype

    def make(self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None, after: Activation | None = None) -> Product:
        """Make a linear map."""
        return make_product(weight, bias, after, self.rows)
