"""Attention: one scores function, a readable reference, a fused path, and the multi-head module around them."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transom.config.model import MultiHead
from transom.layers.cache import KeyValueCache, KeyValues
from transom.layers.dropout import dropout as dropped
from transom.layers.dropout import keep_mask, rounded
from transom.layers.tap import Scope, tap

SHORT = 128
"""Up to this many keys, training on a CPU computes attention explicitly: the fused kernel's backward is slower there."""


def scores(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch n_heads key d_head"],
    bias: Float[Tensor, "#batch #n_heads #query #key"] | None = None,
) -> Float[Tensor, "batch n_heads query key"]:
    """Compare each query with each key.

    S = Q K^T / sqrt(d_k) (+ bias) (Vaswani et al. 2017, eq. 1, inside the softmax).
    """
    s = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    return s if bias is None else s + bias


def pattern(
    s: Float[Tensor, "batch n_heads query key"], mask: Bool[Tensor, "#batch #n_heads #query #key"] | None = None
) -> Float[Tensor, "batch n_heads query key"]:
    """Turn scores into attention weights: a softmax, in float32 at least, over the keys that the mask allows.

    A row that may attend to nothing gives 0, never NaN.
    """
    s = s.to(torch.promote_types(s.dtype, torch.float32))
    if mask is None:
        return s.softmax(-1)
    weights = s.masked_fill(~mask, torch.finfo(s.dtype).min).softmax(-1)
    return weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def attend_explicit(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch n_heads key d_head"],
    v: Float[Tensor, "batch n_heads key d_value"],
    mask: Bool[Tensor, "#batch #n_heads #query #key"] | None = None,
    bias: Float[Tensor, "#batch #n_heads #query #key"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Attend by the equation: Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (Vaswani et al. 2017, eq. 1)."""
    return dropped(pattern(scores(q, k, bias), mask), dropout, True).to(v.dtype) @ v


def attend_fused(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch n_heads key d_head"],
    v: Float[Tensor, "batch n_heads key d_value"],
    mask: Bool[Tensor, "#batch #n_heads #query #key"] | None = None,
    bias: Float[Tensor, "#batch #n_heads #query #key"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Attend by PyTorch's fused kernel; the same function as ``attend_explicit``."""
    if bias is not None:
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


class _Short(torch.autograd.Function):
    """``attend_explicit`` with its gradient written out; ``bias`` gets none.

    With P = softmax(S), D the dropout mask, Z = (P D) V and G the gradient of Z:
    dV = (P D)^T G, dP = D (G V^T), dS = P (dP - rowsum(G Z)), dQ = dS K / sqrt(d_k), dK = dS^T Q / sqrt(d_k).
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, dropout: float) -> Tensor:
        q, k, v = (x.contiguous() for x in (q, k, v))
        p = scores(q, k, bias).to(torch.promote_types(q.dtype, torch.float32))
        if mask is not None:
            p = p.masked_fill_(~mask, -torch.inf)
        p.sub_(p.amax(-1, keepdim=True).clamp_(min=torch.finfo(p.dtype).min)).exp_()
        p.mul_(p.sum(-1, keepdim=True).clamp_(min=torch.finfo(p.dtype).tiny).reciprocal_())  # a row that sees nothing stays 0
        drop = keep_mask(p, dropout) if dropout else None
        weights = (p if drop is None else p * drop).to(v.dtype)
        z = weights @ v
        ctx.save_for_backward(q, k, v, p, weights, z, drop)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, p, weights, z, drop = ctx.saved_tensors
        grad_v = weights.transpose(-2, -1) @ grad
        grad_s = (grad @ v.transpose(-2, -1)).to(p.dtype)
        if drop is not None:
            grad_s.mul_(drop)
        grad_s.sub_((grad * z).sum(-1, keepdim=True, dtype=p.dtype)).mul_(p).mul_(q.shape[-1] ** -0.5)
        grad_s = grad_s.to(q.dtype)
        return grad_s @ k, grad_s.transpose(-2, -1) @ q, grad_v, None, None, None


def attend_short(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch n_heads key d_head"],
    v: Float[Tensor, "batch n_heads key d_value"],
    mask: Bool[Tensor, "#batch #n_heads #query #key"] | None = None,
    bias: Float[Tensor, "#batch #n_heads #query #key"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Attend explicitly with a lean gradient: the fastest way to train on short sequences on a CPU; ``bias`` gets no gradient."""
    z: Tensor = _Short.apply(q, k, v, mask, bias, rounded(dropout))  # type: ignore[no-untyped-call]
    return z


def attend(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch n_heads key d_head"],
    v: Float[Tensor, "batch n_heads key d_value"],
    mask: Bool[Tensor, "#batch #n_heads #query #key"] | None = None,
    bias: Float[Tensor, "#batch #n_heads #query #key"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Attend by the fastest of the equal ways: written out for short sequences in training on a CPU, otherwise fused."""
    short = q.device.type == "cpu" and k.shape[2] <= SHORT and torch.is_grad_enabled() and (bias is None or not bias.requires_grad)
    return (attend_short if short else attend_fused)(q, k, v, mask, bias, dropout)


class Attention(nn.Module):
    """Multi-head attention, over its own input or over another sequence's (Vaswani et al. 2017, section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O, head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i).
    W_Q, W_K, W_V and W_O (``q``, ``k``, ``v``, ``o``) are stored apart; PyTorch keeps them transposed.
    """

    def __init__(self, brick: MultiHead, d_model: int, n_heads: int, d_head: int, d_value: int, dropout: float) -> None:
        """Make the projections: d_model to n_heads * d_head (queries, keys) and n_heads * d_value (values), and back."""
        super().__init__()
        self.n_heads, self.d_head, self.d_value, self.dropout = n_heads, d_head, d_value, dropout
        self.q = nn.Linear(d_model, n_heads * d_head, brick.bias)
        self.k = nn.Linear(d_model, n_heads * d_head, brick.bias)
        self.v = nn.Linear(d_model, n_heads * d_value, brick.bias)
        self.o = nn.Linear(n_heads * d_value, d_model, brick.output_bias) if brick.output else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "rows query d_model"],
        memory: Float[Tensor, "batch key d_model"] | KeyValues | None = None,
        mask: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        cache: KeyValueCache | None = None,
        taps: Scope | None = None,
    ) -> Float[Tensor, "rows query d_model"]:
        """Let each query of ``x`` gather values.

        Args:
            x: what asks.
            memory: what is asked: another sequence, or its keys and values from ``keys_values``; left out, ``x`` itself.
                ``x`` may hold several rows (beams) for each row of ``memory``; they share its keys.
            mask: True where a query may attend to a key, broadcastable to (batch, n_heads, query, key).
            bias: added to the scores.
            cache: earlier tokens' keys and values; the new ones are appended.
            taps: observer.
        """
        if isinstance(memory, KeyValues):
            k, v = memory
        else:
            k, v = self.keys_values(x if memory is None else memory, taps)
            if cache is not None:
                k, v = cache.append(KeyValues(k, v))
        q = self.q(x).view(k.shape[0], -1, self.n_heads, self.d_head).transpose(1, 2)  # (batch, n_heads, query, d_head)
        q = tap(taps, "q", q)
        z = attend(q, k, v, mask, bias, self.dropout if self.training else 0.0)
        z = tap(taps, "z", z)
        return self.o(z.transpose(1, 2).reshape(*x.shape[:2], -1))

    def keys_values(self, x: Float[Tensor, "batch key d_model"], taps: Scope | None = None) -> KeyValues:
        """Project ``x`` to keys and values in heads."""
        k = self.k(x).view(*x.shape[:2], self.n_heads, self.d_head).transpose(1, 2)  # (batch, n_heads, key, d_head)
        v = self.v(x).view(*x.shape[:2], self.n_heads, self.d_value).transpose(1, 2)  # (batch, n_heads, key, d_value)
        k = tap(taps, "k", k)
        v = tap(taps, "v", v)
        return KeyValues(k, v)
