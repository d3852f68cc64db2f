"""Attention with its gradient written out: on a CPU the fastest way to train on short sequences, and on the visible tiles of long ones."""

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
"""Up to this many keys, training on a CPU computes attention explicitly: the fused kernel is 1.4 to 8 times slower there, forward and back.
Behind it the weights that are kept for the gradient, a number a pair of tokens, take more memory than that is worth."""


def in_groups(x: Float[Tensor, "batch n_heads query width"], kv_heads: int) -> Float[Tensor, "batch kv_heads queries width"]:
    """Lay the query heads of a group one behind the other, as so many more queries of its one key head: nothing is repeated."""
    return x if x.shape[1] == kv_heads else x.reshape(len(x), kv_heads, x.shape[1] // kv_heads * x.shape[2], x.shape[3])


class Weights(NamedTuple):
    """What queries give each key, and what the gradient needs beside.

    Attributes:
        p: the softmax of the scores.
        log: the logarithm of each query's sum of exponentials, in float32 at least; None where nobody asked.
        drop: 0 or 1 / (1 - dropout), by which ``p`` is multiplied; None where nothing is dropped.
        blind: True at queries that see nothing; None where nothing is masked.
        slope: of the curve that bounds the scores; None without one.
    """

    p: Float[Tensor, "batch n_heads query key"]
    log: Float[Tensor, "batch n_heads query 1"] | None
    drop: Float[Tensor, "batch n_heads query key"] | None
    blind: Bool[Tensor, "#batch #n_heads query 1"] | None
    slope: Float[Tensor, "batch n_heads query key"] | None

    @property
    def kept(self) -> Float[Tensor, "batch n_heads query key"]:
        """The weights, dropped."""
        return self.p if self.drop is None else self.p * self.drop

    def gather(self, v: Float[Tensor, "batch kv_heads key d_value"]) -> Float[Tensor, "batch n_heads query d_value"]:
        """Gather values; a query that sees nothing gathers 0, never NaN."""
        z = (in_groups(self.kept, v.shape[1]) @ v).view(*self.p.shape[:3], v.shape[3])
        return z if self.blind is None else z.masked_fill_(self.blind, 0.0)


class Lean(NamedTuple):
    """Attention and its gradient, by formula.

    With P = softmax(S), D what drops, Z = (P D) V and G the gradient of Z:
    dV = (P D)^T G, dP = D (G V^T), dS = P (dP - rowsum(P dP)), dQ = dS K / sqrt(d_k), dK = dS^T Q / sqrt(d_k).
    The softmax works in float32 inside and keeps P in the type of the products: at these sizes time goes into passes over memory.

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
        """Compare each query with each key, and turn scores into weights; ``log`` asks for the sums of exponentials too."""
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
        """Compare each query with each key; return the scores, and the slope of the curve that bounds them."""
        s = (in_groups(q * q.shape[3] ** -0.5, k.shape[1]) @ k.transpose(-2, -1)).view(*q.shape[:3], k.shape[2])
        if self.softcap is None:
            return s, None
        s = s.div_(self.softcap).tanh_()
        slope = 1 - s * s
        return s * self.softcap if torch.is_grad_enabled() else s.mul_(self.softcap), slope


def _log_sums(s: Tensor, p: Tensor, blind: Tensor | None) -> Float[Tensor, "batch n_heads query 1"]:
    """Give log sum_j exp(s_j) = s_m - log softmax(s)_m, m the largest; the least number there is where a query sees nothing."""
    wide = torch.promote_types(s.dtype, torch.float32)
    if torch.is_grad_enabled():  # rounding makes weights equal whose scores differ: the largest of each then have other gradients
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
    """Give the gradients of queries, keys, values and of the scores with their bias.

    Args:
        of: the weights.
        q: queries.
        k: keys.
        v: values.
        grad: of what was gathered.
        inner: rowsum(P dP) over all keys, where these are but a part of them: rowsum(G Z) of all that was gathered.
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
    """Return the gradient P (dP - rowsum(P dP)) of the scores whose softmax is P, by PyTorch's own kernel where it has it."""
    kernel = getattr(torch, "_softmax_backward_data", None)  # private
    return (grad - (grad * p).sum(-1, keepdim=True)) * p if kernel is None else kernel(grad, p, -1, p.dtype)


class _Attend(torch.autograd.Function):
    """Attention with its weights kept for the gradient; ``bias`` gets none."""

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
    """Attend as ``_Attend`` did, in operations that autograd records.

    Mask and bias, which are constants, are not saved but told by the weights: log p is the scores, plus the bias, less a number per query,
    and minus infinity where a key is masked.
    """
    s, _ = lean.scores(q, k)
    exact = s.to(torch.promote_types(s.dtype, torch.float32))
    exact = exact + (found.p.to(exact).log() - exact).detach()
    return found._replace(p=exact.softmax(-1).to(s.dtype)).gather(v)


def lean(terms: Terms) -> Lean:
    """Return what the written-out gradient needs of the terms."""
    return Lean(rounded(terms.dropout), terms.softcap)


def attend_short(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    terms: Terms = PLAIN,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Attend explicitly, with the weights kept for a written-out gradient: the fastest way to train on short sequences on a CPU.

    Equal to ``attend_explicit`` where scores have no sinks; the bias gets no gradient.
    """
    assert terms.sinks is None, "the written-out gradient of short sequences knows no sinks"
    q, k, v = (x.contiguous() for x in (q, k, v))
    z: Tensor = _Attend.apply(q, k, v, terms.mask, terms.bias, lean(terms))  # type: ignore[no-untyped-call]
    return z


def short_in_training(q: Tensor, k: Tensor, v: Tensor, terms: Terms = PLAIN) -> bool:
    """Return whether ``attend_short`` serves."""
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
    """Attend by PyTorch's fused kernel; the same function as ``attend_explicit`` where scores are neither bounded nor sunk."""
    assert terms.softcap is None and terms.sinks is None, "the fused kernel knows no softcap and no sinks"
    mask = terms.mask
    if terms.bias is not None:
        bias = terms.bias.to(q.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    if k.shape[1] < q.shape[1] and q.shape[2] == 1 and (mask is None or mask.shape[-3] == 1):  # a step: no copy of the cache
        grouped = q.view(len(q), k.shape[1], -1, q.shape[3])  # the heads of a group are queries of one key head
        z = F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, dropout_p=terms.dropout)
        return z.reshape(len(q), q.shape[1], 1, -1)
    k, v = per_query_head(k, q.shape[1]), per_query_head(v, q.shape[1])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=terms.dropout)


def neither_bounded_nor_sunk(q: Tensor, k: Tensor, v: Tensor, terms: Terms = PLAIN) -> bool:
    """Return whether ``attend_fused`` serves."""
    return terms.softcap is None and terms.sinks is None and terms.score is None
