"""Linear maps whose weights are laid out once as the processor's matrix units want them."""

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
"""Activations that a product applies itself, by the name and the algorithm that oneDNN has for them."""


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
        bias: Float[Tensor, "outer"] | None,
        after: Activation | None,
        rows: int,
    ) -> None:
        """Pack the weights for products with about as many rows; others work as well, but a map may take twice the time."""
        found = kernels()
        assert found is not None, "pays() asked for them"
        self.weight = found.pack(weight.contiguous(), rows)
        self.bias = bias
        self.after, self.algorithm = FUSED[after]
        self.apply, self.apply_and_add = found.apply, found.apply_and_add

    def __call__(self, x: Float[Tensor, "*axes inner"], plus: Float[Tensor, "*axes outer"] | None = None) -> Float[Tensor, "*axes outer"]:
        """Apply it."""
        if plus is None:
            return self.apply(x, self.weight, self.bias, self.after, [], self.algorithm)
        return self.apply_and_add(x, plus, self.weight, self.bias, "add")


def supported() -> bool:
    """Return whether this PyTorch and this processor have the product."""
    found = kernels()
    return found is not None and found.supported()


def pays(weight: Tensor, bias: Tensor | None, after: Activation | None, rows: int) -> bool:
    """Return whether this PyTorch and this processor have the product: of bfloat16 on a CPU, with an activation that it knows."""
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and after in FUSED and supported()
