"""Attention kernels: native and explicit attention with hand-written gradients for training on a CPU, and PyTorch's fused kernel.

Native attention, in the project's own C++, neither copies heads nor saves weights. It runs in float32 on AVX-512 (``native/attention.h``)
and in bfloat16 on the matrix unit (``native/bfloat16_attention.h``). Elsewhere in bfloat16 on a CPU, the explicit kernel is the fastest for
short sequences, and for the visible tiles of long sequences.
"""

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from transom.files.cpu_info import cpu_flags
from transom.kernels import elementwise
from transom.kernels.elementwise import call_typed, is_supported
from transom.kernels.linear import missing_matrix_unit
from transom.kernels.native_library import load_elementwise_library
from transom.kernels.native_structs import AttentionStruct
from transom.kernels.second_order import differentiable_gradients
from transom.layers.attention import DEFAULT_ARGS, AttentionArgs, explicit_attention, repeat_kv
from transom.layers.dispatch import REFERENCES, needs_double_backward
from transom.layers.dropout import KeyedMasks, draw_dropout_mask, round_probability

MAX_SHORT_KEYS = 1024
"""Maximum number of keys for which training on a CPU uses explicit attention. Up to this number PyTorch's fused kernel is 1.4 to 8 times
slower in bfloat16, forward and backward. With more keys, the weights that are saved for the gradient would take too much memory."""

MAX_CHUNK_WEIGHTS = 2**24
"""Maximum number of attention weights that ``attention_by_query_chunks`` computes at once (64 MB in float32)."""


def group_query_heads(x: Float[Tensor, "batch n_heads query width"], kv_heads: int) -> Float[Tensor, "batch kv_heads queries width"]:
    """Concatenate the query heads that share a key-value head along the query axis, so that keys and values need not be repeated."""
    return x if x.shape[1] == kv_heads else x.reshape(len(x), kv_heads, x.shape[1] // kv_heads * x.shape[2], x.shape[3])


class SavedWeights(NamedTuple):
    """Attention weights, and further tensors that the backward pass needs.

    Attributes:
        p: softmax of the scores, before dropout.
        logsumexp: logsumexp of each query's scores, in float32 or wider; None unless requested.
        dropout_mask: 0 or 1 / (1 - dropout), the factor of ``p``; None without dropout.
        fully_masked: True for queries that may attend to no key; None without a mask, or if there is no such query.
        softcap_gradient: derivative of the softcap at each score; None without a softcap.
    """

    p: Float[Tensor, "batch n_heads query key"]
    logsumexp: Float[Tensor, "batch n_heads query 1"] | None
    dropout_mask: Float[Tensor, "batch n_heads query key"] | None
    fully_masked: Bool[Tensor, "#batch #n_heads query 1"] | None
    softcap_gradient: Float[Tensor, "batch n_heads query key"] | None

    @property
    def after_dropout(self) -> Float[Tensor, "batch n_heads query key"]:
        """Attention weights after dropout."""
        return self.p if self.dropout_mask is None else self.p * self.dropout_mask

    def weighted_values(self, v: Float[Tensor, "batch kv_heads key d_value"]) -> Float[Tensor, "batch n_heads query d_value"]:
        """Return the sum of the values, weighted by the weights after dropout; a query that may attend to no key gives 0, never NaN."""
        z = (group_query_heads(self.after_dropout, v.shape[1]) @ v).view(*self.p.shape[:3], v.shape[3])
        return z if self.fully_masked is None else z.masked_fill_(self.fully_masked, 0.0)


class CpuAttention(NamedTuple):
    """Explicit attention, which computes all attention weights, and its gradient.

    With P = softmax(S), D the dropout mask, Z = (P D) V (P D elementwise) and G the gradient of Z:
    dV = (P D)^T G, dP = D (G V^T), dS = P (dP - rowsum(P dP)), dQ = dS K / sqrt(d_k), dK = dS^T Q / sqrt(d_k).
    The softmax is computed in float32 and P is stored in the dtype of the products: at these sizes memory traffic dominates the time.

    Attributes:
        dropout: probability of dropping a weight.
        softcap: c of c tanh(S / c), which bounds the scores (Gemma Team 2024, section 2); None for no softcap.
        dropout_masks: keyed dropout masks of the weights; None for masks from PyTorch's generator.
    """

    dropout: float = 0.0
    softcap: float | None = None
    dropout_masks: KeyedMasks | None = None

    def attention_weights(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        mask: Bool[Tensor, "#batch #n_heads #query #key"] | None,
        bias: Float[Tensor, "#batch #n_heads #query #key"] | None,
        return_lse: bool = False,
        draw_mask: Callable[[Tensor, float], Tensor] | None = None,
    ) -> SavedWeights:
        """Compute the attention weights; with ``return_lse`` also the logsumexp of each query's scores.

        ``draw_mask`` computes the dropout mask of gathered weights; None for that of all weights.
        """
        (s, softcap_gradient), fully_masked = self.attention_scores(q, k), None
        if bias is not None:
            s = s.add_(bias)
        if not return_lse and not torch.is_grad_enabled() and elementwise.can_take_softmax(s, mask):
            fully_masked = ~mask.any(-1, keepdim=True) if elementwise.softmax_(s, mask) and mask is not None else None
            p, sums = s, None
        else:
            if mask is not None:
                fully_masked = ~mask.any(-1, keepdim=True)
                s.add_(torch.zeros(mask.shape, dtype=s.dtype, device=s.device).masked_fill_(~(mask | fully_masked), -torch.inf))
            p = s.softmax(-1)
            sums = _logsumexp(s, p, fully_masked) if return_lse else None
        draw_mask = draw_mask or (draw_dropout_mask if self.dropout_masks is None else self.dropout_masks.draw)
        dropout_mask = draw_mask(p, self.dropout) if self.dropout else None
        return SavedWeights(p, sums, dropout_mask, fully_masked, softcap_gradient)

    def attention_scores(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"]
    ) -> tuple[Float[Tensor, "batch n_heads query key"], Float[Tensor, "batch n_heads query key"] | None]:
        """Return the scores Q K^T / sqrt(d_k), softcapped, and the derivative of the softcap; None without a softcap."""
        s = (group_query_heads(q * q.shape[3] ** -0.5, k.shape[1]) @ k.transpose(-2, -1)).view(*q.shape[:3], k.shape[2])
        if self.softcap is None:
            return s, None
        s = s.div_(self.softcap).tanh_()
        softcap_gradient = 1 - s * s
        return s * self.softcap if torch.is_grad_enabled() else s.mul_(self.softcap), softcap_gradient


def _logsumexp(s: Tensor, p: Tensor, fully_masked: Tensor | None) -> Float[Tensor, "batch n_heads query 1"]:
    """Return log sum_j exp(s_j) per query, as s_m - log p_m with the largest score s_m; the lowest finite number if fully masked."""
    exact = torch.promote_types(s.dtype, torch.float32)
    if torch.is_grad_enabled():  # after rounding, the maxima of s and p can differ, and their gradients with them
        log = s.to(exact).logsumexp(-1, keepdim=True)
    else:
        log = s.amax(-1, keepdim=True).to(exact) - p.amax(-1, keepdim=True).to(exact).log()
    return log if fully_masked is None else log.masked_fill(fully_masked, torch.finfo(exact).min)


def attention_backward(
    weights: SavedWeights,
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    grad: Float[Tensor, "batch n_heads query d_value"],
    delta: Float[Tensor, "batch n_heads query 1"] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys, values, and scores after the bias.

    Args:
        weights: attention weights of the forward pass.
        q: queries.
        k: keys.
        v: values.
        grad: gradient of the output.
        delta: rowsum(P dP) over all keys = rowsum(G Z), required if ``k`` holds only some of the keys; else None.
    """
    n, scale = k.shape[1], q.shape[3] ** -0.5
    if weights.fully_masked is not None:
        grad = grad.masked_fill(weights.fully_masked, 0.0)
    grad = group_query_heads(grad, n)
    grad_p = (grad @ v.transpose(-2, -1)).view(weights.p.shape)
    if weights.dropout_mask is not None:
        grad_p.mul_(weights.dropout_mask)
    grad_v = group_query_heads(weights.after_dropout, n).transpose(-2, -1) @ grad
    grad_b = softmax_backward(grad_p, weights.p) if delta is None else grad_p.sub_(delta).mul_(weights.p)
    grad_s = group_query_heads(grad_b if weights.softcap_gradient is None else grad_b * weights.softcap_gradient, n)
    grad_k = grad_s.transpose(-2, -1) @ group_query_heads(q * scale, n)
    return (grad_s @ k).mul_(scale).view(q.shape), grad_k, grad_v, grad_b


def softmax_backward(grad: Float[Tensor, "*axes key"], p: Float[Tensor, "*axes key"]) -> Float[Tensor, "*axes key"]:
    """Return P (dP - rowsum(P dP)), the gradient of the input of the softmax, by the native kernel or PyTorch's private one if it exists.

    ``grad`` may be overwritten.
    """
    if not torch.is_grad_enabled() and p.is_contiguous() and p.dtype == grad.dtype and elementwise.can_take_softmax(grad, None):
        elementwise.softmax_backward_(grad, p)
        return grad
    kernel = getattr(torch, "_softmax_backward_data", None)  # private
    return (grad - (grad * p).sum(-1, keepdim=True)) * p if kernel is None else kernel(grad, p, -1, p.dtype)


class _ShortAttention(torch.autograd.Function):
    """Explicit attention that saves its weights for the backward pass; ``bias`` gets no gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, cpu_attention: CpuAttention) -> Tensor:
        weights = cpu_attention.attention_weights(q, k, mask, bias)
        ctx.cpu_attention = cpu_attention
        ctx.save_for_backward(q, k, v, *weights)
        return weights.weighted_values(v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *weights = ctx.saved_tensors
        if needs_double_backward():
            return (
                *differentiable_gradients(partial(_recorded_attention, SavedWeights(*weights), ctx.cpu_attention), (q, k, v), grad),
                None,
                None,
                None,
            )
        return *attention_backward(SavedWeights(*weights), q, k, v, grad)[:3], None, None, None


def _recorded_attention(saved: SavedWeights, cpu_attention: CpuAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Repeat the forward pass of ``_ShortAttention`` with operations that autograd records.

    Mask and bias are constants and are not saved but recovered from the weights: log p equals score plus bias minus a constant per
    query, and minus infinity for a masked key.
    """
    s, _ = cpu_attention.attention_scores(q, k)
    exact = s.to(torch.promote_types(s.dtype, torch.float32))
    exact = exact + (saved.p.to(exact).log() - exact).detach()
    return saved._replace(p=exact.softmax(-1).to(s.dtype)).weighted_values(v)


def cpu_attention(args: AttentionArgs) -> CpuAttention:
    """Return the CPU attention with the dropout and softcap of ``args``."""
    return CpuAttention(round_probability(args.dropout), args.softcap, args.dropout_masks)


def short_attention(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    args: AttentionArgs = DEFAULT_ARGS,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute explicit attention with a hand-written gradient, which saves the weights.

    Equal to ``explicit_attention``, except that sinks are not supported and the bias gets no gradient.
    """
    assert args.sinks is None, "the hand-written gradient does not support sinks"
    q, k, v = (x.contiguous() for x in (q, k, v))
    z: Tensor = _ShortAttention.apply(q, k, v, args.mask, args.bias, cpu_attention(args))  # type: ignore[no-untyped-call]
    return z


def can_use_short_attention(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs = DEFAULT_ARGS) -> bool:
    """Return whether ``short_attention`` applies: few keys on a CPU, in training; no sinks, scores by a plugin, or learned bias."""
    if q.device.type != "cpu" or k.shape[2] > MAX_SHORT_KEYS or not torch.is_grad_enabled():
        return False
    learned = args.bias is not None and args.bias.requires_grad
    return args.sinks is None and args.score is None and not learned


def attention_by_query_chunks(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    args: AttentionArgs = DEFAULT_ARGS,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute ``explicit_attention`` in chunks of queries, whose weights the backward pass recomputes, for keyed dropout of many keys."""
    size = max(1, MAX_CHUNK_WEIGHTS // (len(q) * q.shape[1] * max(k.shape[2], 1)))
    if q.shape[2] <= size:
        return explicit_attention(q, k, v, args)
    chunks = [slice(first, first + size) for first in range(0, q.shape[2], size)]
    found: list[Tensor] = [
        checkpoint(explicit_attention, q[:, :, chunk], k, v, _select_queries(args, chunk), use_reentrant=False, preserve_rng_state=False)
        for chunk in chunks
    ]
    return torch.cat(found, 2)


def _select_queries(args: AttentionArgs, chunk: slice) -> AttentionArgs:
    """Return the arguments of attention for a chunk of the queries."""
    assert args.dropout_masks is not None, "only keyed masks can be computed for a part of the queries"
    mask, bias = (x if x is None or x.shape[2] == 1 else x[:, :, chunk] for x in (args.mask, args.bias))
    head, query, key = (*args.dropout_masks.offsets, 0, 0, 0)[:3]
    masks = args.dropout_masks._replace(offsets=(head, query + chunk.start, key))
    return args._replace(mask=mask, bias=bias, dropout_masks=masks)


def has_keyed_dropout(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs = DEFAULT_ARGS) -> bool:
    """Return whether ``attention_by_query_chunks`` is needed: attention weights are dropped by keyed masks."""
    return args.dropout > 0 and args.dropout_masks is not None


def fused_attention(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    args: AttentionArgs = DEFAULT_ARGS,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute attention with PyTorch's fused kernel; equal to ``explicit_attention``, but without softcap, sinks and keyed dropout."""
    assert args.softcap is None and args.sinks is None, "the fused kernel supports neither softcap nor sinks"
    mask = args.mask
    if args.bias is not None:
        bias = args.bias.to(q.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    if k.shape[1] < q.shape[1] and q.shape[2] == 1 and (mask is None or mask.shape[-3] == 1):  # one decoding step: do not copy the cache
        grouped = q.view(len(q), k.shape[1], -1, q.shape[3])  # the query heads of a group become queries of one key head
        z = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, dropout_p=args.dropout)
        return z.reshape(len(q), q.shape[1], 1, -1)
    k, v = repeat_kv(k, q.shape[1]), repeat_kv(v, q.shape[1])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=args.dropout)


def can_use_fused_attention(q: Tensor, k: Tensor, v: Tensor, args: AttentionArgs = DEFAULT_ARGS) -> bool:
    """Return whether ``fused_attention`` applies: no softcap, attention sinks or scores by a plugin."""
    return args.softcap is None and args.sinks is None and args.score is None


BLOCKS = {torch.float32: (16, 64), torch.bfloat16: (32, 128)}
"""Minimum and maximum number of queries of a block by dtype."""

MAX_SCORES = 2**17
"""Maximum number of scores of a block (512 KiB in float32, half of a second-level cache), unless the block is the smallest."""

LANES = 16
"""Floats per AVX-512 vector; d_head and d_value must be multiples."""

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
        call_typed("attention", q.dtype, ctypes.byref(shape), q, k, v, mask, z, normalizers, work, floats, threads)
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
        call_typed("attention_backward", q.dtype, ctypes.byref(shape), *tensors, floats, threads)
        return *gradients, None


def _work_floats(shape: AttentionStruct, dtype: torch.dtype, in_float32: int, backward: bool) -> int:
    """Return the floats of memory that a thread needs, also where planning follows shapes: in bfloat16 what the library says."""
    library = load_elementwise_library().library
    assert library is not None
    return in_float32 if dtype == torch.float32 else -(-int(library.transom_attention_bytes(ctypes.byref(shape), backward)) // 4)


def _channels_contiguous(x: Any) -> Any:
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def _attention_shape(q: Tensor, k: Tensor, v: Tensor, z: Tensor, mask: Tensor | None) -> AttentionStruct:
    """Describe the tensors; a block has as many queries as keep its scores in the near caches."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    row = -(-n_keys // LANES) * LANES
    min_block, max_block = BLOCKS[q.dtype]
    block = min(max(MAX_SCORES // row, min_block) // min_block * min_block, max_block, n_queries)
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
