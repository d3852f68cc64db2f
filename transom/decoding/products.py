"""Linear maps made ready to be applied thousands of times: weights laid out once as the processor's matrix units want them."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


@runtime_checkable
class Product(Protocol):
    """A linear map y = x W^T + b, with a rectifier behind it where it was made so."""

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Apply it and add ``plus``."""
        ...


class Plain:
    """The map as PyTorch applies it; the readable reference of the others."""

    def __init__(self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None, relu: bool) -> None:
        """Hold the weights."""
        self.weight, self.bias, self.relu = weight, bias, relu

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Apply it."""
        y = F.linear(x, self.weight, self.bias)
        if self.relu:
            y = y.relu_()
        return y if plus is None else plus + y


class Packed:
    """The map with its weights packed for oneDNN: no call lays them out again, and bias, rectifier and sum need no pass of their own."""

    def __init__(self, weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"] | None, relu: bool) -> None:
        """Pack the weights."""
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
        self.bias = bias
        self.after = "relu" if relu else "none"
        self.apply = torch.ops.mkldnn._linear_pointwise.default
        self.apply_and_add = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Apply it."""
        y: Tensor
        if plus is None:
            y = self.apply(x, self.weight, self.bias, self.after, [], "")
        else:
            y = self.apply_and_add(x, plus, self.weight, self.bias, "add")
        return y


_ROWS = 32
"""Rows of x that the packing has in mind; others work as well, at nearly the same speed."""


class Arithmetic(NamedTuple):
    """How products are made and the type of what flows between them."""

    make: Callable[[Tensor, Tensor | None, bool], Product]
    dtype: torch.dtype


def arithmetic_of(weight: Tensor) -> Arithmetic:
    """Choose the fastest arithmetic that keeps the type of ``weight``, on its device."""
    packs = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return Arithmetic(Packed if packs else Plain, weight.dtype)
