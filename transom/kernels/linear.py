"""Linear maps in bfloat16 on a CPU: weights packed once by oneDNN for inference, and training on the matrix unit (AMX).

PyTorch computes the gradient of a weight in bfloat16, in products that take up to twice the time of those of the forward pass, and copies
it to float32; the gradient of a bias is a sum with a float32 copy. ``native/weight_gradient.h`` computes both in float32 in one call.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.kernels.elementwise import address_of, call_native, is_supported
from transom.kernels.native_library import load_elementwise_library
from transom.kernels.native_structs import GradientStruct
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


MIN_MULTIPLICATIONS = 1 << 22
"""Minimum multiplications (rows x d_in x d_out) of the gradients of weights; PyTorch is as fast below it."""

WORK_BYTES = 5 * 2**18
"""Bytes of a packed operand and of sums per thread, as ``WORK`` in ``weight_gradient.h``."""

PACKED_BYTES = 2 + 4 / 32
"""Bytes per number of the left operand: a packed number in bfloat16, and a sum in float32 per 32 of them."""


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
        and x.numel() * grad.shape[-1] >= MIN_MULTIPLICATIONS
        and grad.stride(-1) == x.stride(-1) == 1
        and is_supported(x)
        and missing_matrix_unit() is None
    )


class WeightGradient(NamedTuple):
    """Gradients of a linear layer's weight, (d_out, d_in), and bias, (d_out,), in float32; that of the bias is None unless requested."""

    weight: Tensor
    bias: Tensor | None


def weight_gradient(grad: Tensor, x: Tensor, with_bias: bool = False, add_to: Tensor | None = None) -> WeightGradient:
    """Return the gradients of one layer; arguments as for ``weight_gradients``."""
    return weight_gradients([grad], x, [with_bias], None if add_to is None else [add_to])[0]


def weight_gradients(
    grads: Sequence[Tensor], x: Tensor, with_bias: Sequence[bool], add_to: Sequence[Tensor] | None = None
) -> list[WeightGradient]:
    """Return the gradients G^T X of the weights and sum(G) of the biases of linear layers with the same inputs.

    Args:
        grads: gradient G of each layer's outputs, (rows, d_out), in bfloat16; rows may be apart in memory.
        x: the inputs X, (rows, d_in).
        with_bias: per layer, whether to compute the gradient of its bias.
        add_to: per layer, a contiguous float32 tensor to which G^T X is added, and which is returned; None for new tensors.
    """
    (rows, inputs), threads = x.shape, torch.get_num_threads()
    assert x.numel() and all(len(grad) == rows and grad.numel() for grad in grads)
    assert all(each.dtype == torch.bfloat16 and 1 in (each.shape[1], each.stride(1)) for each in (x, *grads)), "the library reads such rows"
    shapes = [(grad.shape[1], inputs) for grad in grads]
    weights = [x.new_empty(shape, dtype=torch.float32) for shape in shapes] if add_to is None else add_to
    assert [w.shape for w in weights] == shapes and all(w.dtype == torch.float32 and w.is_contiguous() for w in weights)
    biases = [x.new_empty(grad.shape[1], dtype=torch.float32) if needed else None for grad, needed in zip(grads, with_bias, strict=True)]
    found = [WeightGradient(*each) for each in zip(weights, biases, strict=True)]
    left = inputs if len(grads) > 1 else min(inputs, grads[0].shape[1])
    work = x.new_empty(int(PACKED_BYTES * _whole(rows) * _whole(left)) + threads * WORK_BYTES, dtype=torch.uint8)
    structs = [
        GradientStruct(*map(address_of, (grad, *results)), grad.shape[1], grad.stride(0))
        for grad, results in zip(grads, found, strict=True)
    ]
    array = (GradientStruct * len(structs))(*structs)
    call_native("weight_gradients", array, len(array), x, add_to is not None, rows, inputs, x.stride(0), work, threads)
    return found


def _whole(n: int) -> int:
    """Round n up to a multiple of 32, the rows or columns of a panel (``PANEL`` in ``bfloat16_products.h``)."""
    return -(-n // 32) * 32


class _Linears(torch.autograd.Function):
    """x W^T + b of each layer, given as W and b in turn, in bfloat16; gradients of W and b in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = parameters[::2], parameters[1::2]
        bf16_weights = [weight.to(torch.bfloat16) for weight in weights if weight is not None]
        ctx.save_for_backward(x, *parameters, *bf16_weights)
        return tuple(
            F.linear(x, weight) if bias is None else linear_16_bit(x, weight, bias.to(torch.bfloat16))
            for weight, bias in zip(bf16_weights, biases, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        n = len(grads)
        x, parameters, bf16_weights = (saved := ctx.saved_tensors)[0], saved[1 : 1 + 2 * n], saved[1 + 2 * n :]
        if needs_double_backward():
            return differentiable_gradients(_reference, (x, *parameters), torch.cat(grads, -1))
        needs_x, needs_weights, needs_biases = ctx.needs_input_grad[0], ctx.needs_input_grad[1::2], ctx.needs_input_grad[2::2]
        flat, flat_x = [grad.flatten(0, -2) for grad in grads], x.flatten(0, -2)
        flat = [grad if grad.stride(-1) == 1 else grad.contiguous() for grad in flat]
        grad_x: Tensor | None = None
        for grad, weight in zip(flat, bf16_weights, strict=True) if needs_x else ():
            grad_x = grad @ weight if grad_x is None else grad_x.addmm_(grad, weight)
        trained = [i for i in range(n) if needs_weights[i]]
        computed = weight_gradients([flat[i] for i in trained], flat_x, [needs_biases[i] for i in trained]) if trained else []
        of_layers: dict[int, tuple[Tensor | None, Tensor | None]] = dict(zip(trained, computed, strict=True))
        for i in set(range(n)) - set(trained):
            of_layers[i] = None, flat[i].sum(0, dtype=torch.float32) if needs_biases[i] else None
        return None if grad_x is None else grad_x.view(x.shape), *(each for i in range(n) for each in of_layers[i])


def _reference(x: Tensor, *parameters: Tensor | None) -> Tensor:
    """Compute the outputs of all layers with the reference, concatenated."""
    cast = [None if each is None else each.to(x.dtype) for each in parameters]
    return torch.cat(REFERENCES["linears"](x, tuple(cast[::2]), tuple(cast[1::2])), -1)


def can_use_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether ``linear`` applies, as ``linears`` for one layer."""
    return can_use_linears(x, (weight,), (bias,))


def can_use_linears(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> bool:
    """Return whether ``linears`` applies: training in bfloat16 by autocast on a CPU with a matrix unit, of many rows."""
    pairs = zip(weights, biases, strict=True)  # where they do not fit, PyTorch explains
    fit = all(x.shape[-1] == weight.shape[1] and (bias is None or len(bias) == len(weight)) for weight, bias in pairs)
    return (
        torch.is_grad_enabled()
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and fit
        and x.dim() > 1
        and x.numel() * sum(map(len, weights)) >= MIN_MULTIPLICATIONS
        and is_supported(x)
        and missing_matrix_unit() is None
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute a linear layer (``layers/feed_forward.py``) in bfloat16."""
    return linears(x, (weight,), (bias,))[0]


def linears(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Compute linear layers with the same inputs in bfloat16."""
    with torch.autocast("cpu", enabled=False):
        parameters = (each for pair in zip(weights, biases, strict=True) for each in pair)
        outputs: tuple[Tensor, ...] = _apply(x.to(torch.bfloat16).contiguous(), *parameters)
        return outputs


_apply: Callable[..., tuple[Tensor, ...]] = _Linears.apply
