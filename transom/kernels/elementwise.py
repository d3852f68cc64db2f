"""Activations, norms and rotary positions in bfloat16 on a CPU, each in one pass of the project's own C++ (``native/elementwise.cpp``).

PyTorch computes them in several passes over memory, some with float32 copies. The arithmetic here is in float32, and only results are
rounded, so that errors are at most those of PyTorch. Results do not depend on the number of threads.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from transom.kernels.native_library import load_elementwise_library
from transom.kernels.second_order import differentiable_gradients, needs_double_backward
from transom.layers.activation import gelu_tanh, relu
from transom.layers.dispatch import REFERENCES, SHAPE_TYPES

CODES: dict[Callable[[Tensor], Tensor], int] = {relu: 0, F.gelu: 1, gelu_tanh: 2, F.silu: 3, torch.sigmoid: 4}
"""Maps each activation to its code in ``elementwise.cpp``."""


def is_supported(x: Tensor) -> bool:
    """Return whether ``x`` is bfloat16 on a CPU and the library can be built; compiled graphs have fused kernels of their own."""
    return (
        x.dtype == torch.bfloat16
        and x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and load_elementwise_library().library is not None
    )


def can_activate(x: Tensor, up: Tensor | None, activation: Callable[[Tensor], Tensor]) -> bool:
    """Return whether ``activate`` applies: bfloat16 on a CPU, and an activation in ``CODES``; PyTorch's GELU without a gate is faster."""
    applies = activation is not F.gelu if up is None else (up.dtype == x.dtype and up.shape == x.shape)
    return applies and activation in CODES and is_supported(x)


def can_normalize(x: Tensor, weight: Tensor, *_: object) -> bool:
    """Return whether ``layer_norm`` and ``rms_norm`` apply: bfloat16 vectors on a CPU, with gains in float32."""
    return is_supported(x) and weight.dtype == torch.float32


def can_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Return whether ``rotate`` applies: bfloat16 vectors on a CPU, with tables in float32."""
    tables = (each.dtype == torch.float32 and each.stride(-1) == 1 and each.shape[1] == 1 for each in (cos, sin))
    return is_supported(x) and x.dim() == 4 and x.stride(-1) == 1 and all(tables) and cos.stride() == sin.stride()


class _Activation(torch.autograd.Function):
    """f(x), or f(x) * up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor | None, activation: Callable[[Tensor], Tensor]) -> Tensor:
        x, up = x.contiguous(), None if up is None else up.contiguous()
        ctx.save_for_backward(x, up)
        ctx.activation = activation
        out = torch.empty_like(x)
        _call("transom_gate", CODES[activation], x, up, out, x.numel(), torch.get_num_threads())
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, up = ctx.saved_tensors
        if needs_double_backward():
            return differentiable_gradients(REFERENCES["activation"], (x, up, ctx.activation), grad)
        grad_x, grad_up = torch.empty_like(x), None if up is None else torch.empty_like(x)
        code, threads = CODES[ctx.activation], torch.get_num_threads()
        _call("transom_gate_backward", code, grad.contiguous(), x, up, grad_x, grad_up, x.numel(), threads)
        return grad_x, grad_up, None


class _Norm(torch.autograd.Function):
    """Layer normalization, or RMS normalization if not ``centered``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, centered: bool) -> Tensor:
        x = x.contiguous()
        out, inverse = torch.empty_like(x), torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
        mean = torch.empty_like(inverse) if centered else None
        _call("transom_norm", x, weight, bias, out, mean, inverse, inverse.numel(), x.shape[-1], eps, torch.get_num_threads())
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
        if _call("transom_norm_backward", grad.contiguous(), x, weight, mean, inverse, grad_x, grad_weight, grad_bias, *sizes):
            raise MemoryError(f"expected {weight.nbytes * 64:,} bytes for the gradient of a norm, found no memory")
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
    _call("transom_rotate", x, cos, sin, out, *strides, cos.shape[-1], backward, torch.get_num_threads())
    return out


def _call(name: str, *arguments: Any) -> int | None:
    """Call a function of the library with the addresses of tensors; do nothing where planning follows tensors without values.

    Returns:
        The status of a function that has one: 0 if it succeeded.
    """
    if SHAPE_TYPES.get():
        return None
    library = load_elementwise_library().library
    _set_parallel()
    status: int | None = getattr(library, name)(*(each.data_ptr() if isinstance(each, Tensor) else each for each in arguments))
    return status


@cache
def _set_parallel() -> None:
    """Let the library run its chunks on the threads of the OpenMP library that PyTorch has loaded; without one it uses one thread."""
    library = load_elementwise_library().library
    for path in _openmp_libraries():
        if function := getattr(ctypes.CDLL(str(path)), "GOMP_parallel", None):
            assert library is not None
            library.transom_set_parallel(ctypes.cast(function, ctypes.c_void_p))
            return


def _openmp_libraries() -> list[Path]:
    """Return the paths of the OpenMP libraries of this process, that of PyTorch's own folder first."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    found = {path for line in lines if (path := Path(line.split(maxsplit=5)[-1])).name.startswith(("libgomp", "libiomp", "libomp"))}
    return sorted(found, key=lambda path: (not path.is_relative_to(Path(torch.__file__).parent), path))


_normalize: Callable[..., Tensor] = _Norm.apply

activate: Callable[..., Tensor] = _Activation.apply
"""Compute f(x), or f(x) * up; arguments as in ``layers.activation.activate``."""

rotate: Callable[[Tensor, Tensor, Tensor], Tensor] = _Rotate.apply
"""Apply RoPE as ``layers.position_encoding.rotate_pairs``; arguments (x, cos, sin), of which only ``x`` gets a gradient."""


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Apply layer normalization (``layers/norm.py``)."""
    return _normalize(x, weight, bias, eps, True)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Apply RMS normalization (``layers/norm.py``)."""
    return _normalize(x, weight, None, eps, False)
