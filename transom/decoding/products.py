"""Linear maps made ready to be applied thousands of times: weights laid out once as the processor's matrix units want them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.layers.activation import gelu_tanh, relu

Activation = Callable[[Tensor], Tensor]

FUSED: dict[Activation | None, tuple[str, str]] = {
    None: ("none", ""),
    relu: ("relu", ""),
    F.gelu: ("gelu", "none"),
    gelu_tanh: ("gelu", "tanh"),
    F.silu: ("swish", ""),
}
"""Activations that a product applies itself, by the name and the algorithm that oneDNN has for them."""


@runtime_checkable
class Product(Protocol):
    """A linear map y = x W^T + b, with an activation behind it where it was made so."""

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Apply it and add ``plus``."""
        ...


class Plain:
    """The map as PyTorch applies it; the readable reference of the others."""

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


class Kernels(NamedTuple):
    """PyTorch's products by oneDNN, none of them documented.

    Attributes:
        supported: tells whether the processor has them in bfloat16.
        pack: lays weights out.
        apply: makes a product, with a bias and an activation.
        apply_and_add: makes a product, with a bias, and adds to it.
    """

    supported: Callable[[], bool]
    pack: Callable[[Tensor, int], Tensor]
    apply: Callable[..., Tensor]
    apply_and_add: Callable[..., Tensor]


def kernels() -> Kernels | None:
    """Return PyTorch's products by oneDNN; None where this PyTorch lacks one of them."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    product = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    found: tuple[Any, ...] = (supported, pack, getattr(product, "default", None), getattr(product, "binary", None))
    return None if None in found else Kernels(*found)


class Packed:
    """The map with its weights packed for oneDNN: no call lays them out again, and bias, activation and sum need no pass of their own."""

    def __init__(
        self,
        weight: Float[Tensor, "outer inner"],
        bias: Float[Tensor, "outer"] | None = None,
        after: Activation | None = None,
        rows: int = STEP_ROWS,
    ) -> None:
        """Pack the weights for products with about as many rows; others work as well, but a map may take twice the time."""
        found = kernels()
        assert found is not None, "arithmetic_of asked for them"
        self.weight = found.pack(weight.contiguous(), rows)
        self.bias = bias
        self.after, self.algorithm = FUSED[after]
        self.apply, self.apply_and_add = found.apply, found.apply_and_add

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Apply it."""
        if plus is None:
            return self.apply(x, self.weight, self.bias, self.after, [], self.algorithm)
        return self.apply_and_add(x, plus, self.weight, self.bias, "add")


class Arithmetic(NamedTuple):
    """How products are made and the type of what flows between them."""

    make: Callable[[Tensor, Tensor | None, Activation | None], Product]
    dtype: torch.dtype


def arithmetic_of(weight: Tensor, rows: int = STEP_ROWS) -> Arithmetic:
    """Choose the fastest arithmetic that keeps the type of ``weight``, on its device, for products of about as many rows."""
    found = kernels() if weight.dtype == torch.bfloat16 and weight.device.type == "cpu" else None
    return Arithmetic(Plain if found is None or not found.supported() else partial(Packed, rows=rows), weight.dtype)
