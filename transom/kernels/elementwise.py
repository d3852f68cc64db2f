"""Element-wise operations of training on a CPU, each in one pass of the project's own C++ (``native/elementwise.cpp``).

They are activations, norms, rotary positions, keyed dropout and the softmax of attention, in bfloat16 and float32. PyTorch computes them
in several passes over memory, in bfloat16 some with float32 copies. The arithmetic here is in float32, and only results are rounded, so
that in bfloat16 errors are at most those of PyTorch. Results do not depend on the number of threads.

The functions copy what is not contiguous before autograd sees it, so that second derivatives follow the copy.
"""

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from transom.kernels.native_library import load_elementwise_library
from transom.kernels.second_order import differentiable_gradients
from transom.layers.activation import gelu_tanh, relu
from transom.layers.dispatch import PLAIN_TYPES, REFERENCES, SHAPE_TYPES, needs_double_backward
from transom.layers.dropout import KeyedMasks, kept_below, resolution

CODES: dict[Callable[[Tensor], Tensor], int] = {relu: 0, F.gelu: 1, gelu_tanh: 2, F.silu: 3, torch.sigmoid: 4}
"""Maps each activation to its code in ``elementwise.cpp``."""


MIN_ELEMENTS = 2**15
"""Number of elements from which ``activate`` is faster than PyTorch; its call takes six microseconds longer."""

MAX_CHUNKS = 32
"""Maximum number of chunks of rows, each with its own sums over the rows, as in ``native/rows.h``."""

MAX_SOFTMAX_KEYS = 4096
"""Maximum number of keys of ``softmax_``, as in ``elementwise.cpp``."""


_dispatch_mode: Callable[[Any], object] = getattr(import_module("torch._C"), "_get_dispatch_mode", lambda key: None)  # private
_MODE_KEYS = getattr(import_module("torch._C"), "_TorchDispatchModeKey", None)  # private
_TRACERS = [getattr(_MODE_KEYS, name) for name in ("PROXY", "FAKE", "FUNCTIONAL") if hasattr(_MODE_KEYS, name)]
"""Keys of PyTorch's modes that record operations or run them without values."""


def is_supported(x: Tensor) -> bool:
    """Return whether ``x`` is bfloat16 or float32 on a CPU and the library can be built.

    Compiled graphs have fused kernels of their own, and tracers would not see what the library computes.
    """
    return (
        x.dtype in (torch.bfloat16, torch.float32)
        and x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and (bool(SHAPE_TYPES.get()) or (type(x) in PLAIN_TYPES and all(_dispatch_mode(key) is None for key in _TRACERS)))
        and load_elementwise_library().library is not None
    )


def can_activate(x: Tensor, up: Tensor | None, activation: Callable[[Tensor], Tensor]) -> bool:
    """Return whether ``activate`` applies and is faster than PyTorch, which it is not for few elements and where PyTorch takes one pass."""
    one_pass = (F.gelu,) if x.dtype == torch.bfloat16 else (F.gelu, F.silu, torch.sigmoid)
    if x.numel() < MIN_ELEMENTS or (up is None and activation in one_pass):
        return False
    return (up is None or (up.dtype == x.dtype and up.shape == x.shape)) and activation in CODES and is_supported(x)


def can_normalize(x: Tensor, weight: Tensor, *_: object) -> bool:
    """Return whether ``rms_norm`` applies: vectors on a CPU, with gains in float32."""
    return is_supported(x) and weight.dtype == torch.float32


def can_normalize_centered(x: Tensor, weight: Tensor, *_: object) -> bool:
    """Return whether ``layer_norm`` applies: bfloat16 vectors on a CPU, with gains in float32; in float32, PyTorch's is as fast."""
    return x.dtype == torch.bfloat16 and can_normalize(x, weight)


def can_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Return whether ``rotate`` applies: vectors on a CPU, with tables in float32."""
    tables = (each.dtype == torch.float32 and each.stride(-1) == 1 and each.shape[1] == 1 for each in (cos, sin))
    return is_supported(x) and x.dim() == 4 and x.stride(-1) == 1 and all(tables) and cos.stride() == sin.stride()


def can_drop(x: Tensor, residual: Tensor | None, masks: KeyedMasks, p: float) -> bool:
    """Return whether ``drop_keyed`` applies: on a CPU, with ``residual`` and ``x`` of the same dtype and shape."""
    return (residual is None or (residual.dtype == x.dtype and residual.shape == x.shape)) and x.numel() > 0 and is_supported(x)


class _Activation(torch.autograd.Function):
    """f(x), or f(x) * up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor | None, activation: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x, up)
        ctx.activation = activation
        return activate_rows(x, None, up, activation, torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, up = ctx.saved_tensors
        if needs_double_backward():
            return differentiable_gradients(REFERENCES["activation"], (x, up, ctx.activation), grad)
        grad_x, grad_up = torch.empty_like(x), None if up is None else torch.empty_like(x)
        activate_rows_backward(grad.contiguous(), x, None, up, ctx.activation, grad_x, grad_up, None, None)
        return grad_x, grad_up, None


def activate_rows(x: Tensor, bias: Tensor | None, up: Tensor | None, activation: Callable[[Tensor], Tensor], out: Tensor) -> Tensor:
    """Write f(x), f(x + ``bias``) or f(x) * ``up`` to ``out``, which may be ``x``, and return it; all have the strides of ``x``."""
    call_typed("activate", x.dtype, CODES[activation], x, bias, up, out, *_row_sizes(x), torch.get_num_threads())
    return out


def activate_rows_backward(
    grad: Tensor,
    x: Tensor,
    bias: Tensor | None,
    up: Tensor | None,
    activation: Callable[[Tensor], Tensor],
    grad_x: Tensor,
    grad_up: Tensor | None,
    recomputed: Tensor | None,
    grad_bias: Tensor | None,
) -> None:
    """Write the gradients of ``activate_rows`` to ``grad_x``, which may be ``grad``, ``grad_up`` and ``grad_bias``.

    Args:
        grad: gradient of the result; it and the other tensors have the strides of ``x``.
        x: input of the forward pass, as are ``bias`` and ``up``, of which at most one is given.
        bias: contiguous bias in float32, or None.
        up: factor of a gated unit, or None.
        activation: the function f.
        grad_x: receives the gradient of ``x``.
        grad_up: receives the gradient of ``up``; None without ``up``.
        recomputed: receives the result of the forward pass; may be None without ``grad_bias``.
        grad_bias: receives the sum of ``grad_x`` over the rows, in float32; None with ``up``, and not None with ``bias``.
    """
    assert bias is None or grad_bias is not None
    assert grad_bias is None or (up is None and recomputed is not None)
    tensors = grad, x, bias, up, grad_x, grad_up, recomputed, grad_bias
    if call_typed("activate_backward", x.dtype, CODES[activation], *tensors, *_row_sizes(x), torch.get_num_threads()):
        raise MemoryError(f"expected {x.shape[-1] * 4 * MAX_CHUNKS:,} bytes for the gradient of a bias, found no memory")


def _row_sizes(x: Tensor) -> tuple[int, int, int]:
    """Return the number of rows, their width, and the elements from one to the next; more than two axes are contiguous."""
    width = x.shape[-1]
    return x.numel() // width, width, x.stride(0) if x.dim() == 2 else width


class _Norm(torch.autograd.Function):
    """Layer normalization, or RMS normalization if not ``centered``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, centered: bool) -> Tensor:
        out, inverse = torch.empty_like(x), torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
        mean = torch.empty_like(inverse) if centered else None
        call_typed("norm", x.dtype, x, weight, bias, out, mean, inverse, inverse.numel(), x.shape[-1], eps, torch.get_num_threads())
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        if needs_double_backward():
            if mean is None:
                grad_x, grad_weight, _ = differentiable_gradients(REFERENCES["rms_norm"], (x, weight, ctx.eps), grad)
                return grad_x, grad_weight, None, None, None
            return *differentiable_gradients(REFERENCES["layer_norm"], (x, weight, bias, ctx.eps), grad), None
        grad_x, grad_weight, grad_bias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        sizes = inverse.numel(), x.shape[-1], torch.get_num_threads()
        if call_typed("norm_backward", x.dtype, grad.contiguous(), x, weight, mean, inverse, grad_x, grad_weight, grad_bias, *sizes):
            raise MemoryError(f"expected {weight.nbytes * 2 * MAX_CHUNKS:,} bytes for the gradient of a norm, found no memory")
        return grad_x, grad_weight, None if bias is None else grad_bias, None, None


class _Rotate(torch.autograd.Function):
    """RoPE rotation of pairs of dimensions; the backward pass rotates the gradient by the negative angles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.like = torch.empty_like(x, device="meta")
        return _rotate(x, cos, sin, torch.empty(x.shape, dtype=x.dtype, device=x.device), backward=False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        if needs_double_backward():
            return REFERENCES["rotary"](grad, cos, -sin), None, None
        grad = grad if grad.stride(-1) == 1 else grad.contiguous()
        return _rotate(grad, cos, sin, torch.empty_like(ctx.like, device=grad.device), backward=True), None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor, backward: bool) -> Tensor:
    """Write the rotated vectors to ``out``, whose strides may differ: attention reads vectors by heads, projections by tokens."""
    table = (cos.stride(0) if cos.shape[0] > 1 else 0, cos.stride(2))
    strides = [(ctypes.c_int64 * len(each))(*each) for each in (x.shape, x.stride(), table, out.stride())]
    call_typed("rotate", x.dtype, x, cos, sin, out, *strides, cos.shape[-1], backward, torch.get_num_threads())
    return out


class _Dropout(torch.autograd.Function):
    """x mask, or residual + x mask; the backward pass computes the mask again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, masks: KeyedMasks, p: float) -> Tensor:
        ctx.save_for_backward(masks.keys)
        ctx.offsets, ctx.p, ctx.has_residual = masks.offsets, p, residual is not None
        return _drop(x, residual, masks, p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        masks = KeyedMasks(ctx.saved_tensors[0], ctx.offsets)
        grad_x = REFERENCES["keyed_dropout"](grad, None, masks, ctx.p) if needs_double_backward() else _drop(grad, None, masks, ctx.p)
        return grad_x, grad if ctx.has_residual else None, None, None


def _drop(x: Tensor, residual: Tensor | None, masks: KeyedMasks, p: float) -> Tensor:
    x, residual = x.contiguous(), None if residual is None else residual.contiguous()
    out, words = torch.empty_like(x), masks.words(x.shape, p)
    seeds = words.seeds.contiguous()
    sizes = (ctypes.c_int64 * len(words))(seeds.numel(), *words[1:])
    n_bytes = resolution(p)[1].itemsize
    call_typed("dropout", x.dtype, x, residual, out, seeds, sizes, kept_below(p), n_bytes, 1 / (1 - p), torch.get_num_threads())
    return out


def address_of(x: Tensor | None) -> int | None:
    """Return the address of a tensor's numbers; None without a tensor, or where planning follows tensors without values."""
    return None if x is None or SHAPE_TYPES.get() else x.data_ptr()


def call_native(function: str, *arguments: Any) -> int | None:
    """Call a function of the library with the addresses of tensors; do nothing where planning follows tensors without values.

    Returns:
        The status of a function that has one: 0 if it succeeded.
    """
    if SHAPE_TYPES.get():
        return None
    library = load_elementwise_library().library
    called = getattr(library, f"transom_{function}")
    status: int | None = called(*(each.data_ptr() if isinstance(each, Tensor) else each for each in arguments))
    return status


def call_typed(name: str, dtype: torch.dtype, *arguments: Any) -> int | None:
    """Call the library's function for a dtype."""
    return call_native(f"{name}_{dtype}".replace("torch.", ""), *arguments)


_activate: Callable[..., Tensor] = _Activation.apply
_normalize: Callable[..., Tensor] = _Norm.apply

drop_keyed: Callable[..., Tensor] = _Dropout.apply
"""Apply a keyed dropout mask; arguments as in ``layers.dropout.drop_keyed``."""

rotate: Callable[[Tensor, Tensor, Tensor], Tensor] = _Rotate.apply
"""Apply RoPE as ``layers.position_encoding.rotate_pairs``; arguments (x, cos, sin), of which only ``x`` gets a gradient."""


def activate(x: Tensor, up: Tensor | None, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute f(x), or f(x) * up (``layers/activation.py``)."""
    return _activate(x.contiguous(), None if up is None else up.contiguous(), activation)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Apply layer normalization (``layers/norm.py``)."""
    return _normalize(x.contiguous(), weight, bias, eps, True)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply RMS normalization (``layers/norm.py``)."""
    return _normalize(x.contiguous(), weight, None, eps, False)


def can_take_softmax(s: Tensor, mask: Tensor | None) -> bool:
    """Return whether ``softmax_`` applies: contiguous scores on a CPU, and a mask with one value per key."""
    return is_supported(s) and s.is_contiguous() and 0 < s.shape[-1] <= MAX_SOFTMAX_KEYS and (mask is None or mask.shape[-1] == s.shape[-1])


def softmax_(s: Float[Tensor, "batch n_heads query key"], mask: Bool[Tensor, "#batch #n_heads #query key"] | None) -> bool:
    """Replace scores by their softmax over the visible keys, and skip the keys after the last visible one.

    Returns:
        Whether some queries may attend to no key; these get equal weights.
    """
    if mask is not None and mask.stride(-1) != 1:
        mask = mask.contiguous()
    strides = (0, 0, 0) if mask is None else mask.expand(s.shape).stride()[:3]
    sizes = (ctypes.c_int64 * 4)(*s.shape), (ctypes.c_int64 * 3)(*strides)
    return bool(call_typed("softmax", s.dtype, s, mask, *sizes, torch.get_num_threads()))


def logits_softmax_(z: Float[Tensor, "rows vocab"], log_sums: Float[Tensor, "rows"]) -> None:
    """Replace logits by their softmax, and write their logsumexp to ``log_sums``; both are contiguous."""
    call_typed("logits_softmax", z.dtype, z, log_sums, *z.shape, torch.get_num_threads())


def softmax_backward_(grad: Float[Tensor, "*axes key"], p: Float[Tensor, "*axes key"]) -> None:
    """Replace the gradient of the softmax P by that of its input, P (dP - rowsum(P dP))."""
    call_typed("softmax_backward", p.dtype, grad, p, p.numel() // p.shape[-1], p.shape[-1], torch.get_num_threads())
