"""Attention kernels: explicit attention with a hand-written gradient for training on a CPU, and PyTorch's fused kernel.

For training in bfloat16 on a CPU, the explicit kernel is the fastest for short sequences, and for the visible tiles of long sequences.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from transom.kernels import elementwise
from transom.kernels.second_order import differentiable_gradients
from transom.layers.attention import DEFAULT_ARGS, AttentionArgs, explicit_attention, repeat_kv
from transom.layers.dispatch import needs_double_backward
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
