"""Linear maps with weights packed once by oneDNN for the CPU's matrix units."""

from collections.abc import Callable
from typing import Any, NamedTuple

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
"""Activations that oneDNN fuses with the product: its name and algorithm for each."""


class Kernels(NamedTuple):
    """PyTorch's undocumented oneDNN operations.

    Attributes:
        supported: returns whether the CPU supports bfloat16 products.
        pack: packs the weights.
        apply: computes a product with bias and activation.
        apply_and_add: computes a product with bias and adds a tensor.
    """

    supported: Callable[[], bool]
    pack: Callable[[Tensor, int], Tensor]
    apply: Callable[..., Tensor]
    apply_and_add: Callable[..., Tensor]


def kernels() -> Kernels | None:
    """Return PyTorch's oneDNN operations; None if this PyTorch lacks one of them."""
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    product = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    found: tuple[Any, ...] = (supported, pack, getattr(product, "default", None), getattr(product, "binary", None))
    return None if None in found else Kernels(*found)


class Packed:
    """A linear map with weights packed for oneDNN once, which fuses bias, activation and residual sum with the product."""

    def __init__(
        self,
        weight: Float[Tensor, "outer inner"],
        bias: Float[Tensor, "outer"] | None,
        after: Activation | None,
        rows: int,
    ) -> None:
        """Pack the weights for inputs of about ``rows`` rows; other numbers of rows work but may take twice the time."""
        found = kernels()
        assert found is not None, "checked by pays()"
        self.weight = found.pack(weight.contiguous(), rows)
        self.bias = bias
        self.after, self.algorithm = FUSED[after]
        self.apply, self.apply_and_add = found.apply, found.apply_and_add

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Return f(x W^T + b), or x W^T + b + ``plus``."""
        if plus is None:
            return self.apply(x, self.weight, self.bias, self.after, [], self.algorithm)
        return self.apply_and_add(x, plus, self.weight, self.bias, "add")


def supported() -> bool:
    """Return whether this PyTorch and this CPU support the operations."""
    found = kernels()
    return found is not None and found.supported()


def pays(weight: Tensor, bias: Tensor | None, after: Activation | None, rows: int) -> bool:
    """Return whether ``Packed`` applies: bfloat16 weights on a supported CPU, with an activation in ``FUSED``."""
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and after in FUSED and supported()
