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
class PackedLinear(Protocol):
    """A linear layer y = f(x W^T + b), with an optional activation f."""

    def __call__(
        self, x: Float[Tensor, "*axes inner"], residual: Float[Tensor, "*axes outer"] | None = None
    ) -> Float[Tensor, "*axes outer"]:
        """Return f(x W^T + b), with ``residual`` added if given."""
        ...


class UnpackedLinear:
    """Linear layer computed by ``torch.nn.functional.linear``, without prepacking."""

    def __init__(
        self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None = None, activation: Activation | None = None
    ) -> None:
        self.weight, self.bias, self.activation = weight, bias, activation

    def __call__(
        self, x: Float[Tensor, "*axes inner"], residual: Float[Tensor, "*axes outer"] | None = None
    ) -> Float[Tensor, "*axes outer"]:
        """Return f(x W^T + b), with ``residual`` added if given."""
        y = F.linear(x, self.weight, self.bias)
        if self.activation is not None:
            y = self.activation(y)
        return y if residual is None else residual + y


DECODE_ROWS = 32
"""Typical number of rows of x in a decoding step."""

PREFILL_ROWS = 2048
"""Typical number of rows of x when whole texts are encoded."""


@operation("packed_linear")
def pack_linear(
    weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None, activation: Activation | None, rows: int
) -> PackedLinear:
    """Build a linear layer with an optional activation, optimized for about ``rows`` rows of x; it accepts any number."""
    return UnpackedLinear(weight, bias, activation)


class LinearFactory(NamedTuple):
    """Builds linear layers for one expected number of rows, such as that of a decoding step.

    Attributes:
        rows: expected number of rows of x.
        dtype: dtype of the activations.
    """

    rows: int
    dtype: torch.dtype

    def make(
        self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None, activation: Activation | None = None
    ) -> PackedLinear:
        return pack_linear(weight, bias, activation, self.rows)
