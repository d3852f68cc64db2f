"""Linear maps with weights packed once by oneDNN for the CPU's matrix units."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.layers.activation import gelu_tanh, relu

Activation = Callable[[Tensor], Tensor]

FUSED_ACTIVATIONS: dict[Activation | None, tuple[str, str]] = {
    None: ("none", ""),
    relu: ("relu", ""),
    F.gelu: ("gelu", "none"),
    gelu_tanh: ("gelu", "tanh"),
    F.silu: ("swish", ""),
}
"""Maps each activation that oneDNN can fuse with a matrix product to oneDNN's name and algorithm for this activation."""


class OneDnnOps(NamedTuple):
    """PyTorch's undocumented oneDNN operations.

    Attributes:
        is_supported: returns whether the CPU supports bfloat16 products.
        pack: packs a weight matrix for a number of input rows.
        linear: computes a product with bias and activation.
        linear_add: computes a product with bias and adds another tensor.
    """

    is_supported: Callable[[], bool]
    pack: Callable[[Tensor, int], Tensor]
    linear: Callable[..., Tensor]
    linear_add: Callable[..., Tensor]


def onednn_ops() -> OneDnnOps | None:
    """Return PyTorch's oneDNN operations; None if this PyTorch lacks one of them."""
    is_supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    pack = getattr(torch.ops.mkldnn, "_reorder_linear_weight", None)
    product = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    ops: tuple[Any, ...] = (is_supported, pack, getattr(product, "default", None), getattr(product, "binary", None))
    return None if None in ops else OneDnnOps(*ops)


class OneDnnLinear:
    """A linear map whose weights are packed once for oneDNN; bias, activation and residual sum are fused with the product."""

    def __init__(
        self,
        weight: Float[Tensor, "outer inner"],
        bias: Float[Tensor, "outer"] | None,
        activation: Activation | None,
        rows: int,
    ) -> None:
        """Pack the weights for inputs of about ``rows`` rows; other numbers of rows work but may take twice the time."""
        ops = onednn_ops()
        assert ops is not None, "checked by pays()"
        self.weight = ops.pack(weight.contiguous(), rows)
        self.bias = bias
        self.activation, self.algorithm = FUSED_ACTIVATIONS[activation]
        self.linear, self.linear_add = ops.linear, ops.linear_add

    def __call__(
        self, x: Float[Tensor, "*axes inner"], residual: Float[Tensor, "*axes outer"] | None = None
    ) -> Float[Tensor, "*axes outer"]:
        """Return f(x W^T + b), or x W^T + b + ``residual``."""
        if residual is None:
            return self.linear(x, self.weight, self.bias, self.activation, [], self.algorithm)
        return self.linear_add(x, residual, self.weight, self.bias, "add")


def linear_16_bit(x: Float[Tensor, "*axes inner"], weight: Float[Tensor, "outer inner"], bias: Float[Tensor, "outer"]) -> Tensor:
    """Return x W^T + b in bfloat16; where possible, the product begins without a copy of ``bias`` for each row."""
    ops = onednn_ops()
    if ops is None or not ops.is_supported():
        return F.linear(x, weight, bias)
    return ops.linear(x, weight, bias, "none", [], "")


def is_supported() -> bool:
    """Return whether this PyTorch and this CPU support oneDNN's operations in bfloat16."""
    ops = onednn_ops()
    return ops is not None and ops.is_supported()


def can_use_onednn(weight: Tensor, bias: Tensor | None, activation: Activation | None, rows: int) -> bool:
    """Return whether ``OneDnnLinear`` applies: bfloat16 weights on a supported CPU, with an activation in ``FUSED_ACTIVATIONS``."""
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and activation in FUSED_ACTIVATIONS and is_supported()
