"""Attention: one scores function, a readable reference, a fused path, and the multi-head module around them."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from transom.config.model import MultiHead
from transom.layers.cache import KeyValueCache, KeyValues
from transom.layers.tap import Scope, tap

EXPLICIT_KEYS = 128
"""Up to this many keys, training computes attention explicitly: the fused kernel's backward is slower there on a CPU."""


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
    """Turn scores into attention weights: a softmax over the keys that the mask allows.

    The softmax is taken in float32 at least. A row that may attend to nothing gives 0, never NaN.
    """
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
    return F.dropout(pattern(scores(q, k, bias), mask), dropout) @ v


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
        attend = attend_explicit if torch.is_grad_enabled() and k.shape[2] <= EXPLICIT_KEYS else attend_fused
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
