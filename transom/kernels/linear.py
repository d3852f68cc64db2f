"""Linear maps in bfloat16 on a CPU: weights packed once by oneDNN for inference, and training on the matrix unit (AMX).

PyTorch computes the gradient of a weight in bfloat16, in products that take up to twice the time of those of the forward pass, and copies
it to float32; the gradient of a bias is a sum with a float32 copy. ``native/weight_gradient.h`` computes both in float32 in one call.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.kernels.elementwise import call_native, is_supported
from transom.kernels.native_library import load_elementwise_library
from transom.kernels.second_order import differentiable_gradients
from transom.layers.activation import gelu_tanh, relu
from transom.layers.dispatch import REFERENCES, needs_double_backward

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


def has_bfloat16_products() -> bool:
    """Return whether this PyTorch and this CPU support oneDNN's operations in bfloat16."""
    ops = onednn_ops()
    return ops is not None and ops.is_supported()


def can_use_onednn(weight: Tensor, bias: Tensor | None, activation: Activation | None, rows: int) -> bool:
    """Return whether ``OneDnnLinear`` applies: bfloat16 weights on a supported CPU, with an activation in ``FUSED_ACTIVATIONS``."""
    return weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and activation in FUSED_ACTIVATIONS and has_bfloat16_products()


MIN_PRODUCTS = 1 << 22
"""Least number of products (rows times inputs times outputs) of a gradient; PyTorch is as fast below it."""

WORK_BYTES = 2**20
"""Bytes of packed gradients and of sums per thread, as ``WORK`` in ``weight_gradient.h``."""


@cache
def missing_matrix_unit() -> str | None:
    """Return what this machine lacks for gradients of weights on a matrix unit; None if nothing."""
    library, reason = load_elementwise_library()
    if library is None:
        return reason
    return None if library.transom_can_use_matrix_unit() else "this CPU has no usable matrix unit (amx_bf16)"


def can_compute_weight_gradient(grad: Tensor, x: Tensor) -> bool:
    """Return whether ``weight_gradient`` applies: many rows in bfloat16 on a CPU with a matrix unit."""
    return (
        grad.dtype == x.dtype == torch.bfloat16
        and x.numel() * grad.shape[-1] >= MIN_PRODUCTS
        and grad.stride(-1) == x.stride(-1) == 1
        and is_supported(x)
        and missing_matrix_unit() is None
    )


class WeightGradient(NamedTuple):
    """Gradients of a linear layer's weight, (d_out, d_in), and bias, (d_out,), in float32; None unless requested."""

    weight: Tensor
    bias: Tensor | None


def weight_gradient(grad: Tensor, x: Tensor, with_bias: bool = False, add_to: Tensor | None = None) -> WeightGradient:
    """Return the gradients G^T X of a weight and sum(G) of a bias.

    Args:
        grad: gradient G of the layer's outputs, (rows, d_out), in bfloat16; rows may be apart in memory.
        x: the layer's inputs X, (rows, d_in).
        with_bias: whether to compute the gradient of the bias.
        add_to: contiguous float32 tensor to which G^T X is added, which is returned; None for a new tensor.
    """
    (rows, outputs), inputs, threads = grad.shape, x.shape[1], torch.get_num_threads()
    assert rows and outputs and inputs, "checked by can_compute_weight_gradient()"
    weight = grad.new_empty(outputs, inputs, dtype=torch.float32) if add_to is None else add_to
    assert weight.shape == (outputs, inputs) and weight.dtype == torch.float32 and weight.is_contiguous()
    bias = grad.new_empty(outputs, dtype=torch.float32) if with_bias else None
    work = grad.new_empty(2 * _whole(rows) * _whole(inputs) + threads * WORK_BYTES, dtype=torch.uint8)
    sizes = rows, outputs, inputs, grad.stride(0), x.stride(0)
    call_native("weight_gradient", grad, x, weight, bias, add_to is not None, *sizes, work, threads)
    return WeightGradient(weight, bias)


def _whole(n: int) -> int:
    """Return the next multiple of 32, the numbers in a line of a tile."""
    return -(-n // 32) * 32


class _Linear(torch.autograd.Function):
    """x W^T + b in bfloat16; gradients of W and b in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        narrow = weight.to(torch.bfloat16)
        ctx.save_for_backward(x, weight, bias, narrow)
        return F.linear(x, narrow) if bias is None else linear_16_bit(x, narrow, bias.to(torch.bfloat16))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, narrow = ctx.saved_tensors
        if needs_double_backward():
            return differentiable_gradients(_reference, (x, weight, bias), grad)
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        flat, flat_x = grad.flatten(0, -2), x.flatten(0, -2)
        flat = flat if flat.stride(-1) == 1 else flat.contiguous()
        grad_x = (flat @ narrow).view(x.shape) if needs_x else None
        if not needs_weight:
            return grad_x, None, flat.sum(0, dtype=torch.float32) if needs_bias else None
        return grad_x, *weight_gradient(flat, flat_x, needs_bias)


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = REFERENCES["linear"](x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    return out


def can_use_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether ``linear`` applies: training in bfloat16 by autocast on a CPU with a matrix unit, of many rows."""
    fit = x.shape[-1] == weight.shape[1] and (bias is None or len(bias) == len(weight))  # else PyTorch explains
    return (
        torch.is_grad_enabled()
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and fit
        and x.dim() > 1
        and x.numel() * len(weight) >= MIN_PRODUCTS
        and is_supported(x)
        and missing_matrix_unit() is None
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a linear layer (``layers/feed_forward.py``) in bfloat16."""
    with torch.autocast("cpu", enabled=False):
        return _apply(x.to(torch.bfloat16).contiguous(), weight, bias)


_apply: Callable[..., Tensor] = _Linear.apply
