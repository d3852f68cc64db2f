"""Attention: its scores, its weights, the equation, and the multi-head module around them."""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transom.config.architecture import Transformer
from transom.layers.cache import BlockCache, KeyValueCache, KeyValues, Remembered, RoutedCache, SumsCache
from transom.layers.dispatch import operation
from transom.layers.dropout import dropout as dropped
from transom.layers.masks.sight import EVERYTHING, Sight, VisibleTiles
from transom.layers.norm import build_norm
from transom.layers.position import turn
from transom.layers.tap import Scope, scope, tap


class Terms(NamedTuple):
    """What enters attention beside queries, keys and values.

    Attributes:
        mask: True where a query may attend to a key; None for everywhere.
        bias: added to the scores.
        dropout: probability of dropping an attention weight.
        softcap: c of c tanh(S / c), which bounds the scores (Gemma Team 2024, section 2).
        sinks: each head's score for attending to nothing, which takes its share of the softmax (Agarwal et al. 2025).
    """

    mask: Bool[Tensor, "#batch #n_heads #query #key"] | None = None
    bias: Float[Tensor, "#batch #n_heads #query #key"] | None = None
    dropout: float = 0.0
    softcap: float | None = None
    sinks: Float[Tensor, "n_heads"] | None = None


PLAIN = Terms()
"""Nothing beside them."""


def per_query_head(x: Float[Tensor, "batch kv_heads *places width"], n_heads: int) -> Float[Tensor, "batch n_heads *places width"]:
    """Give each query head the key or value head of its group: heads 0 to g - 1 the first, and so on (Ainslie et al. 2023)."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], 1)


def scores(
    q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], terms: Terms = PLAIN
) -> Float[Tensor, "batch n_heads query key"]:
    """Compare each query with each key.

    S = Q K^T / sqrt(d_k) (Vaswani et al. 2017, eq. 1, inside the softmax), then c tanh(S / c) where scores are bounded, then the bias.
    """
    s = (q * q.shape[-1] ** -0.5) @ per_query_head(k, q.shape[1]).transpose(-2, -1)
    if terms.softcap is not None:
        s = terms.softcap * torch.tanh(s / terms.softcap)
    return s if terms.bias is None else s + terms.bias


def pattern(s: Float[Tensor, "batch n_heads query key"], terms: Terms = PLAIN) -> Float[Tensor, "batch n_heads query key"]:
    """Turn scores into attention weights: a softmax, in float32 at least, over the keys that the mask allows and the sink.

    A row that may attend to nothing gives 0, never NaN.
    """
    s = s.to(torch.promote_types(s.dtype, torch.float32))
    mask = terms.mask
    if mask is not None:
        s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
    if terms.sinks is None:
        weights = s.softmax(-1)
    else:
        sink = terms.sinks.to(s.dtype)[:, None, None].expand(len(s), -1, s.shape[2], 1)
        weights = torch.cat([s, sink], -1).softmax(-1)[..., :-1]
    return weights if mask is None else weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def attend_explicit(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    terms: Terms = PLAIN,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Attend by the equation: Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V (Vaswani et al. 2017, eq. 1)."""
    return dropped(pattern(scores(q, k, terms), terms), terms.dropout, True).to(v.dtype) @ per_query_head(v, q.shape[1])


@operation("attention")
def attend(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    terms: Terms = PLAIN,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Attend by the fastest path of the dispatch table; its reference is ``attend_explicit``."""
    return attend_explicit(q, k, v, terms)


@operation("visible_attention")
def attend_visible(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    tiles: VisibleTiles,
    terms: Terms = PLAIN,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Attend where a mask lets tokens see; the reference writes mask and bias out, the kernels compute the visible tiles only."""
    mask, bias = tiles.written_out()
    return attend(q, k, v, terms._replace(mask=mask, bias=bias))


@runtime_checkable
class Attends(Protocol):
    """An attention of any family: what it gathered is derived again from the queries and keys at its sites ``q`` and ``k``."""

    def weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], sight: Sight
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Give each query's weights of the keys that it may see."""
        ...


class Attention(nn.Module):
    """Multi-head attention, over its own input or over another sequence's (Vaswani et al. 2017, section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O, head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i).
    W_Q, W_K, W_V and W_O (``q``, ``k``, ``v``, ``o``) are stored apart; PyTorch keeps them transposed. Keys and values may have fewer heads
    than queries; each is then shared by a group of query heads.
    """

    def __init__(self, config: Transformer) -> None:
        """Make the projections: d_model to n_heads * d_head (queries), to n_kv_heads times d_head (keys) and d_value (values), and back."""
        super().__init__()
        c, brick = config, config.attention
        self.n_heads, self.n_kv_heads, self.d_head, self.d_value = c.n_heads, c.key_heads, c.width_of_head, c.width_of_value
        self.dropout, self.softcap = c.attention_dropout, brick.softcap
        self.q = nn.Linear(c.d_model, self.n_heads * self.d_head, brick.bias)
        self.k = nn.Linear(c.d_model, self.n_kv_heads * self.d_head, brick.bias)
        self.v = nn.Linear(c.d_model, self.n_kv_heads * self.d_value, brick.bias)
        self.o = nn.Linear(self.n_heads * self.d_value, c.d_model, brick.output_bias) if brick.output else nn.Identity()
        normed = brick.qk_norm.kind != "none"
        self.q_norm, self.k_norm = (build_norm(brick.qk_norm, self.d_head) if normed else None for _ in range(2))
        self.sinks = nn.Parameter(torch.zeros(self.n_heads)) if brick.sinks else None

    def forward(
        self,
        x: Float[Tensor, "rows query d_model"],
        sight: Sight = EVERYTHING,
        memory: Float[Tensor, "batch key d_model"] | Remembered | None = None,
        cache: BlockCache | None = None,
        taps: Scope | None = None,
    ) -> Float[Tensor, "rows query d_model"]:
        """Let each query of ``x`` gather values.

        Args:
            x: what asks.
            sight: what may be seen, and from where.
            memory: what is asked: another sequence, or what ``remember`` kept of it; left out, ``x`` itself.
                ``x`` may hold several rows (beams) for each row of ``memory``; they share its keys.
            cache: earlier tokens' keys and values; the new ones are appended.
            taps: observer.
        """
        if memory is None or isinstance(memory, Tensor):
            memory = self.keys_values(x if memory is None else memory, sight, taps)
        q = self.q(x).view(len(memory[0]), -1, self.n_heads, self.d_head).transpose(1, 2)  # (batch, n_heads, query, d_head)
        if self.q_norm is not None:
            q = self.q_norm(q, scope(taps, "q_norm"))
        q = turn(q, sight.rotation)
        q = tap(taps, "q", q)
        z = self.gather(q, memory, sight, cache)
        z = tap(taps, "z", z)
        return self.o(z.transpose(1, 2).reshape(*x.shape[:2], -1))

    def gather(
        self, q: Float[Tensor, "batch n_heads query d_head"], memory: Remembered, sight: Sight, cache: BlockCache | None
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Let each query gather values: softmax(Q K^T / sqrt(d_k)) V (Vaswani et al. 2017, eq. 1)."""
        assert isinstance(memory, KeyValues) and not isinstance(cache, SumsCache)
        k, v = memory if cache is None else cache.append(memory)
        if sight.seen is not None:
            k, v = k.index_select(2, sight.seen), v.index_select(2, sight.seen)
        terms = self.terms(sight)
        return attend(q, k, v, terms) if sight.tiles is None else attend_visible(q, k, v, sight.tiles, terms)

    def remember(self, memory: Float[Tensor, "batch key d_model"], segments: Int[Tensor, "batch key"]) -> Remembered:
        """Keep what all steps of decoding need of another sequence; where ``segments`` is 0 it is padding."""
        return self.keys_values(memory)

    def new_cache(self, n_rows: int, max_length: int, like: Tensor, routed: bool = False) -> BlockCache:
        """Make an empty memory of this layer's own earlier tokens.

        Args:
            n_rows: texts side by side.
            max_length: most tokens of each.
            like: has the type and the device.
            routed: whether only chosen tokens pass the layer.
        """
        return (RoutedCache if routed else KeyValueCache)(n_rows, self.n_kv_heads, max_length, self.d_head, self.d_value, like)

    def keep(self, x: Float[Tensor, "rows new d_model"], sight: Sight, cache: BlockCache) -> None:
        """Keep what later tokens need of tokens that ask nothing themselves."""
        assert not isinstance(cache, SumsCache)
        cache.append(self.keys_values(x, sight))

    def keys_values(self, x: Float[Tensor, "batch key d_model"], sight: Sight = EVERYTHING, taps: Scope | None = None) -> KeyValues:
        """Project ``x`` to keys and values in heads, turned and mixed as the sight has it."""
        k = self.k(x).view(*x.shape[:2], self.n_kv_heads, self.d_head).transpose(1, 2)  # (batch, kv_heads, key, d_head)
        v = self.v(x).view(*x.shape[:2], self.n_kv_heads, self.d_value).transpose(1, 2)  # (batch, kv_heads, key, d_value)
        if self.k_norm is not None:
            k = self.k_norm(k, scope(taps, "k_norm"))
        k = turn(k, sight.rotation)
        k = tap(taps, "k", k)
        if sight.values is not None:
            v = sight.values(v)
        v = tap(taps, "v", v)
        return KeyValues(k, v)

    def weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], sight: Sight
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Give each query's weights of the keys: softmax(Q K^T / sqrt(d_k)) under the mask (Vaswani et al. 2017, eq. 1)."""
        terms = self.terms(sight)
        return pattern(scores(q, k, terms), terms)

    def terms(self, sight: Sight) -> Terms:
        """Gather what enters beside queries, keys and values; weights are dropped in training only."""
        return Terms(sight.mask, sight.bias, self.dropout if self.training else 0.0, self.softcap, self.sinks)
