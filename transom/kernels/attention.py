"""Attention kernels: explicit attention with a hand-written gradient for training on a CPU, and PyTorch's fused kernel.

The explicit kernel is the fastest way to train on a CPU with short sequences, and with the visible tiles of long ones.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from transom.kernels.second_order import differentiable_gradients, wants_graph
from transom.layers.attention import PLAIN, Terms, per_query_head
from transom.layers.dropout import keep_mask, rounded

SHORT = 1024
"""Maximum number of keys for explicit attention when training on a CPU: there the fused kernel is 1.4 to 8 times slower, forward and
backward. Beyond it, the attention weights saved for the gradient, one number per pair of tokens, take too much memory."""


def in_groups(x: Float[Tensor, "batch n_heads query width"], kv_heads: int) -> Float[Tensor, "batch kv_heads queries width"]:
    """Concatenate the query heads of a group along the query axis, so that keys and values are not repeated (grouped-query attention)."""
    return x if x.shape[1] == kv_heads else x.reshape(len(x), kv_heads, x.shape[1] // kv_heads * x.shape[2], x.shape[3])


class Weights(NamedTuple):
    """Attention weights and the values that the backward pass needs.

    Attributes:
        p: softmax of the scores.
        log: logsumexp of each query's scores, in float32 or wider; None unless requested.
        drop: 0 or 1 / (1 - dropout), the factor of ``p``; None without dropout.
        blind: True for queries that may attend to no key; None without a mask.
        slope: derivative of the softcap; None without one.
    """

    p: Float[Tensor, "batch n_heads query key"]
    log: Float[Tensor, "batch n_heads query 1"] | None
    drop: Float[Tensor, "batch n_heads query key"] | None
    blind: Bool[Tensor, "#batch #n_heads query 1"] | None
    slope: Float[Tensor, "batch n_heads query key"] | None

    @property
    def kept(self) -> Float[Tensor, "batch n_heads query key"]:
        """Attention weights after dropout."""
        return self.p if self.drop is None else self.p * self.drop

    def gather(self, v: Float[Tensor, "batch kv_heads key d_value"]) -> Float[Tensor, "batch n_heads query d_value"]:
        """Return the weighted sum of the values; a query that may attend to no key gives 0, never NaN."""
        z = (in_groups(self.kept, v.shape[1]) @ v).view(*self.p.shape[:3], v.shape[3])
        return z if self.blind is None else z.masked_fill_(self.blind, 0.0)


class Lean(NamedTuple):
    """Explicit attention with its gradient.

    With P = softmax(S), D the dropout mask, Z = (P D) V and G the gradient of Z:
    dV = (P D)^T G, dP = D (G V^T), dS = P (dP - rowsum(P dP)), dQ = dS K / sqrt(d_k), dK = dS^T Q / sqrt(d_k).
    The softmax is computed in float32 and P is stored in the dtype of the products: at these sizes memory traffic dominates the time.

    Attributes:
        dropout: probability of dropping a weight.
        softcap: c of c tanh(S / c), which bounds the scores (Gemma Team 2024, section 2).
    """

    dropout: float = 0.0
    softcap: float | None = None

    def weights(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        mask: Bool[Tensor, "#batch #n_heads #query #key"] | None,
        bias: Float[Tensor, "#batch #n_heads #query #key"] | None,
        log: bool = False,
    ) -> Weights:
        """Compute the attention weights; ``log`` requests the logsumexp of the scores too."""
        (s, slope), blind = self.scores(q, k), None
        if bias is not None:
            s = s.add_(bias)
        if mask is not None:
            blind = ~mask.any(-1, keepdim=True)
            s.add_(torch.zeros(mask.shape, dtype=s.dtype, device=s.device).masked_fill_(~(mask | blind), -torch.inf))
        p = s.softmax(-1)
        sums = _log_sums(s, p, blind) if log else None
        return Weights(p, sums, keep_mask(p, self.dropout) if self.dropout else None, blind, slope)

    def scores(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"]
    ) -> tuple[Float[Tensor, "batch n_heads query key"], Float[Tensor, "batch n_heads query key"] | None]:
        """Return the scores Q K^T / sqrt(d_k), softcapped, and the derivative of the softcap (None without one)."""
        s = (in_groups(q * q.shape[3] ** -0.5, k.shape[1]) @ k.transpose(-2, -1)).view(*q.shape[:3], k.shape[2])
        if self.softcap is None:
            return s, None
        s = s.div_(self.softcap).tanh_()
        slope = 1 - s * s
        return s * self.softcap if torch.is_grad_enabled() else s.mul_(self.softcap), slope


def _log_sums(s: Tensor, p: Tensor, blind: Tensor | None) -> Float[Tensor, "batch n_heads query 1"]:
    """Return log sum_j exp(s_j) = s_m - log softmax(s)_m, m the index of the maximum; the lowest finite number for a fully masked query."""
    wide = torch.promote_types(s.dtype, torch.float32)
    if torch.is_grad_enabled():  # after rounding, the maxima of s and p can differ, and their gradients with them
        log = s.to(wide).logsumexp(-1, keepdim=True)
    else:
        log = s.amax(-1, keepdim=True).to(wide) - p.amax(-1, keepdim=True).to(wide).log()
    return log if blind is None else log.masked_fill(blind, torch.finfo(wide).min)


def gradients(
    of: Weights,
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    grad: Float[Tensor, "batch n_heads query d_value"],
    inner: Float[Tensor, "batch n_heads query 1"] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys, values and biased scores.

    Args:
        of: the weights.
        q: queries.
        k: keys.
        v: values.
        grad: gradient of the output.
        inner: rowsum(P dP) over all keys = rowsum(G Z), required if ``k`` holds only some of the keys.
    """
    n, scale = k.shape[1], q.shape[3] ** -0.5
    if of.blind is not None:
        grad = grad.masked_fill(of.blind, 0.0)
    grad = in_groups(grad, n)
    grad_p = (grad @ v.transpose(-2, -1)).view(of.p.shape)
    if of.drop is not None:
        grad_p.mul_(of.drop)
    grad_v = in_groups(of.kept, n).transpose(-2, -1) @ grad
    grad_b = softmax_gradient(grad_p, of.p) if inner is None else grad_p.sub_(inner).mul_(of.p)
    grad_s = in_groups(grad_b if of.slope is None else grad_b * of.slope, n)
    grad_k = grad_s.transpose(-2, -1) @ in_groups(q * scale, n)
    return (grad_s @ k).mul_(scale).view(q.shape), grad_k, grad_v, grad_b


def softmax_gradient(grad: Float[Tensor, "*axes key"], p: Float[Tensor, "*axes key"]) -> Float[Tensor, "*axes key"]:
    """Return the softmax gradient P (dP - rowsum(P dP)), with PyTorch's private kernel if it exists."""
    kernel = getattr(torch, "_softmax_backward_data", None)  # private
    return (grad - (grad * p).sum(-1, keepdim=True)) * p if kernel is None else kernel(grad, p, -1, p.dtype)


class _Attend(torch.autograd.Function):
    """Explicit attention that saves its weights for the backward pass; ``bias`` gets no gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, lean: Lean) -> Tensor:
        weights = lean.weights(q, k, mask, bias)
        ctx.lean = lean
        ctx.save_for_backward(q, k, v, *weights)
        return weights.gather(v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *weights = ctx.saved_tensors
        if wants_graph():
            return *differentiable_gradients(partial(_attended, Weights(*weights), ctx.lean), (q, k, v), grad), None, None, None
        return *gradients(Weights(*weights), q, k, v, grad)[:3], None, None, None


def _attended(found: Weights, lean: Lean, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Repeat the forward pass of ``_Attend`` with operations that autograd records.

    Mask and bias are constants and are not saved but recovered from the weights: log p equals score plus bias minus a constant per
    query, and minus infinity for a masked key.
    """
    s, _ = lean.scores(q, k)
    exact = s.to(torch.promote_types(s.dtype, torch.float32))
    exact = exact + (found.p.to(exact).log() - exact).detach()
    return found._replace(p=exact.softmax(-1).to(s.dtype)).gather(v)


def lean(terms: Terms) -> Lean:
    """Return the CPU attention with the dropout and softcap of ``terms``."""
    return Lean(rounded(terms.dropout), terms.softcap)


def attend_short(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    terms: Terms = PLAIN,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute explicit attention with a hand-written gradient, the fastest way to train with short sequences on a CPU.

    Equal to ``attend_explicit`` without sinks; the bias gets no gradient.
    """
    assert terms.sinks is None, "the hand-written gradient does not support sinks"
    q, k, v = (x.contiguous() for x in (q, k, v))
    z: Tensor = _Attend.apply(q, k, v, terms.mask, terms.bias, lean(terms))  # type: ignore[no-untyped-call]
    return z


def short_in_training(q: Tensor, k: Tensor, v: Tensor, terms: Terms = PLAIN) -> bool:
    """Return whether ``attend_short`` applies."""
    if q.device.type != "cpu" or k.shape[2] > SHORT or not torch.is_grad_enabled():
        return False
    learned = terms.bias is not None and terms.bias.requires_grad
    return terms.sinks is None and terms.score is None and not learned


def attend_fused(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    terms: Terms = PLAIN,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute attention with PyTorch's fused kernel; equal to ``attend_explicit`` without softcap and sinks."""
    assert terms.softcap is None and terms.sinks is None, "the fused kernel supports neither softcap nor sinks"
    mask = terms.mask
    if terms.bias is not None:
        bias = terms.bias.to(q.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    if k.shape[1] < q.shape[1] and q.shape[2] == 1 and (mask is None or mask.shape[-3] == 1):  # one decoding step: do not copy the cache
        grouped = q.view(len(q), k.shape[1], -1, q.shape[3])  # the query heads of a group become queries of one key head
        z = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, dropout_p=terms.dropout)
        return z.reshape(len(q), q.shape[1], 1, -1)
    k, v = per_query_head(k, q.shape[1]), per_query_head(v, q.shape[1])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=terms.dropout)


def neither_bounded_nor_sunk(q: Tensor, k: Tensor, v: Tensor, terms: Terms = PLAIN) -> bool:
    """Return whether ``attend_fused`` applies."""
    return terms.softcap is None and terms.sinks is None and terms.score is None
