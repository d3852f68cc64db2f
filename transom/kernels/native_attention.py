"""Attention of training on a CPU in the project's own C++, without copies of heads and without saved weights.

In float32 it runs on AVX-512 (``native/attention.h``), in bfloat16 on the matrix unit (``native/bfloat16_attention.h``).
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from transom.files.cpu_info import cpu_flags
from transom.kernels.elementwise import call_native, is_supported
from transom.kernels.matrix_unit import missing_matrix_unit
from transom.kernels.native_library import load_elementwise_library
from transom.kernels.native_structs import AttentionStruct
from transom.kernels.second_order import differentiable_gradients
from transom.layers.attention import DEFAULT_ARGS, AttentionArgs
from transom.layers.dispatch import REFERENCES, needs_double_backward

BLOCKS = {torch.float32: (16, 64), torch.bfloat16: (32, 128)}
"""Least and greatest number of queries of a block by dtype."""

MAX_SCORES = 2**17
"""Maximum number of scores of a block (512 KiB in float32, half of a second-level cache), unless the block is the smallest."""

LANES = 16
"""Numbers of a vector; the width of a head must be a multiple."""

MAX_KEYS = 2**15
"""Maximum number of keys; a row of their scores is 128 KiB."""


def can_use_native_attention(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs = DEFAULT_ARGS) -> bool:
    """Return whether ``native_attention`` applies: training on a CPU with AVX-512, or in bfloat16 with AMX; no bias, dropout or softcap.

    There must be at least as many key-value heads in the batch as threads, each of which computes whole heads.
    """
    if not (is_supported(q) and q.dtype == k.dtype == v.dtype and torch.is_grad_enabled()):
        return False
    plain = args.bias is None and not args.dropout and args.softcap is None and args.sinks is None and args.score is None
    fit = q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3] and k.shape[:3] == v.shape[:3] and q.shape[1] % max(k.shape[1], 1) == 0
    whole_vectors = q.shape[3] > 0 and q.shape[3] % LANES == 0 == v.shape[3] % LANES
    enough = 0 < k.shape[2] <= MAX_KEYS and q.shape[2] > 0 and len(k) * k.shape[1] >= torch.get_num_threads()
    masked = args.mask is None or args.mask.shape[-1] == k.shape[2]
    missing = missing_for_attention if q.dtype == torch.float32 else missing_matrix_unit
    return plain and fit and whole_vectors and enough and masked and missing() is None


@cache
def missing_for_attention() -> str | None:
    """Return what this machine lacks for ``native_attention``; None if nothing."""
    return load_elementwise_library().reason if load_elementwise_library().library is None else _missing_instructions()


def _missing_instructions() -> str | None:
    return None if "avx512f" in cpu_flags() else "this CPU has no avx512f"


class _NativeAttention(torch.autograd.Function):
    """softmax(Q K^T / sqrt(d_k)) V; saves the largest score of each query, and 1 / the sum of exp(score - largest)."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        (batch, n_heads, n_queries, _), d_value = q.shape, v.shape[3]
        z = q.new_empty(batch, n_queries, n_heads, d_value).transpose(1, 2)
        normalizers = q.new_empty(batch, n_heads, n_queries, 2, dtype=torch.float32)
        shape, threads = _attention_shape(q, k, v, z, mask), torch.get_num_threads()
        floats = _work_floats(shape, q.dtype, shape.row * (shape.block + shape.d_head), backward=False)
        work = normalizers.new_empty(threads * floats)
        _call_typed("attention", q.dtype, ctypes.byref(shape), q, k, v, mask, z, normalizers, work, floats, threads)
        ctx.save_for_backward(q, k, v, mask, normalizers)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, normalizers = ctx.saved_tensors
        if needs_double_backward():
            args = AttentionArgs(mask)
            return *differentiable_gradients(lambda *qkv: REFERENCES["attention"](*qkv, args), (q, k, v), grad), None
        grad = _channels_contiguous(grad)
        shape, threads = _attention_shape(q, k, v, grad, mask), torch.get_num_threads()
        gradients = [x.new_empty(len(x), x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k, v)]
        floats = _work_floats(shape, q.dtype, shape.row * (2 * shape.block + shape.d_head + shape.d_value), backward=True)
        work = normalizers.new_empty(threads * floats)
        tensors = q, k, v, mask, normalizers, grad, *gradients, work
        _call_typed("attention_backward", q.dtype, ctypes.byref(shape), *tensors, floats, threads)
        return *gradients, None


def _work_floats(shape: AttentionStruct, dtype: torch.dtype, in_float32: int, backward: bool) -> int:
    """Return the floats of memory that a thread needs: ``in_float32``, or in bfloat16 what the library says."""
    return in_float32 if dtype == torch.float32 else -(-(call_native("attention_bytes", ctypes.byref(shape), backward) or 0) // 4)


def _call_typed(name: str, dtype: torch.dtype, *arguments: Any) -> None:
    call_native(f"{name}_{dtype}".replace("torch.", ""), *arguments)


def _channels_contiguous(x: Any) -> Any:
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def _attention_shape(q: Tensor, k: Tensor, v: Tensor, z: Tensor, mask: Tensor | None) -> AttentionStruct:
    """Describe the tensors; a block is as large as its scores stay in the near caches."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    row = -(-n_keys // LANES) * LANES
    least, greatest = BLOCKS[q.dtype]
    block = min(max(MAX_SCORES // row, least) // least * least, greatest, n_queries)
    group = q.shape[1] // k.shape[1]
    sizes = (len(q), k.shape[1], group, n_queries, n_keys, q.shape[3], v.shape[3], block, row)
    shown = (0, 0, 0) if mask is None else mask.expand(len(q), q.shape[1], n_queries, n_keys).stride()[:3]
    strides = [*(x.stride()[:3] for x in (q, k, v, z)), shown]
    return AttentionStruct(*sizes, *(each for strides_of_one in strides for each in strides_of_one), q.shape[3] ** -0.5)


_attend: Callable[..., Tensor] = _NativeAttention.apply


def native_attention(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs = DEFAULT_ARGS) -> Tensor:
    """Compute attention as ``layers.attention.explicit_attention``; the result lies in memory as (batch, query, n_heads, d_value)."""
    q, k, v, mask = (_channels_contiguous(x) for x in (q, k, v, args.mask))
    return _attend(q, k, v, mask)
