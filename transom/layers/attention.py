"""Attention: who may attend to whom, the scores, the weights, the equation, and the multi-head module around them."""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transom.config.architecture import Transformer
from transom.layers.cache import BlockCache, KeyValueCache, KeyValues, ProjectedMemory, RoutedCache, SumsCache
from transom.layers.context import AttentionContext
from transom.layers.dispatch import operation
from transom.layers.dropout import dropout as dropped
from transom.layers.masks.visible_tiles import VisibleTiles
from transom.layers.norm import build_norm
from transom.layers.observe import observe
from transom.layers.position import turn
from transom.layers.value_residual import FirstValues


def same_segment(queries: Int[Tensor, "batch query"], keys: Int[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 query key"]:
    """Let tokens attend within their own segment. Padding, segment 0, sees only padding, so that no row is empty."""
    return (queries[:, :, None] == keys[:, None, :])[:, None]


def not_padding(keys: Int[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 1 key"]:
    """Let every query attend to every key that is not padding."""
    return (keys > 0)[:, None, None]


def causal(n_queries: int, n_keys: int, device: torch.device | None = None) -> Bool[Tensor, "1 1 query key"]:
    """Let each query attend to itself and to what came before; the last query sits at the last key."""
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)[None, None]


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
    """An attention of any family: its weights are derived again from the queries and keys at its sites ``q`` and ``k``."""

    def weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return each query's weights of the keys that it may see."""
        ...


class Attention(nn.Module):
    """Multi-head attention, over its own input or over another sequence's (Vaswani et al. 2017, section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O, head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i).
    W_Q, W_K, W_V and W_O (``q``, ``k``, ``v``, ``o``) are stored apart; PyTorch keeps them transposed. Keys and values may have fewer heads
    than queries; each is then shared by a group of query heads. How many heads there are is read from the projections, which may hold a
    shard of them.
    """

    def __init__(self, config: Transformer) -> None:
        """Make the projections: d_model to n_heads * d_head (queries), to n_kv_heads times d_head (keys) and d_value (values), and back."""
        super().__init__()
        c, brick = config, config.attention
        self.d_head, self.d_value = c.width_of_head, c.width_of_value
        self.dropout, self.softcap = c.attention_dropout, brick.softcap
        self.q = nn.Linear(c.d_model, c.n_heads * self.d_head, brick.bias)
        self.k = nn.Linear(c.d_model, c.key_heads * self.d_head, brick.bias)
        self.v = nn.Linear(c.d_model, c.key_heads * self.d_value, brick.bias)
        self.o = nn.Linear(c.n_heads * self.d_value, c.d_model, brick.output_bias) if brick.output else nn.Identity()
        normed = brick.qk_norm.kind != "none"
        self.q_norm, self.k_norm = (build_norm(brick.qk_norm, self.d_head) if normed else None for _ in range(2))
        self.sinks = nn.Parameter(torch.zeros(c.n_heads)) if brick.sinks else None

    @property
    def n_heads(self) -> int:
        """Heads of queries."""
        return self.q.weight.shape[0] // self.d_head

    @property
    def n_kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.k.weight.shape[0] // self.d_head

    def forward(
        self,
        x: Float[Tensor, "rows query d_model"],
        ctx: AttentionContext = AttentionContext(),
        memory: Float[Tensor, "batch key d_model"] | ProjectedMemory | None = None,
        first_values: FirstValues | None = None,
    ) -> tuple[Float[Tensor, "rows query d_model"], Float[Tensor, "batch kv_heads key d_value"]]:
        """Let each query of ``x`` gather values.

        Args:
            x: what asks.
            ctx: mask, positions and cache.
            memory: what is asked: another sequence, or what ``project_memory`` made of it; None for ``x`` itself.
                ``x`` may hold several rows (beams) for each row of ``memory``; they share its keys.
            first_values: of the stack's first block, to be mixed with the values of ``x``.

        Returns:
            The output, and the values before they are mixed: of ``x``, or of the memory.
        """
        values = None
        if memory is None or isinstance(memory, Tensor):
            memory, values = self.project(x if memory is None else memory, ctx, first_values)
        q = self.q(x).unflatten(-1, (-1, self.d_head))  # (rows, query, n_heads, d_head)
        q = q.view(len(memory[0]), -1, *q.shape[2:]).transpose(1, 2)  # (batch, n_heads, query, d_head)
        if self.q_norm is not None:
            q = self.q_norm(q, ctx)
        q = turn(q, ctx.rotation)
        q = observe(ctx, self, "q", q)
        z = self.gather(q, memory, ctx)
        z = observe(ctx, self, "z", z)
        return self.o(z.transpose(1, 2).reshape(*x.shape[:2], -1)), memory[-1] if values is None else values

    def project(
        self, x: Float[Tensor, "batch key d_model"], ctx: AttentionContext, first_values: FirstValues | None = None
    ) -> tuple[KeyValues, Float[Tensor, "batch kv_heads key d_value"]]:
        """Project ``x`` to keys and values in heads, keys rotated, values mixed with the first block's; return the values unmixed too."""
        k = self.k(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2)  # (batch, kv_heads, key, d_head)
        own = self.v(x).unflatten(-1, (-1, self.d_value)).transpose(1, 2)  # (batch, kv_heads, key, d_value)
        if self.k_norm is not None:
            k = self.k_norm(k, ctx)
        k = turn(k, ctx.rotation)
        k = observe(ctx, self, "k", k)
        v = own if first_values is None else first_values.mix(own)
        v = observe(ctx, self, "v", v)
        return KeyValues(k, v), own

    def gather(
        self, q: Float[Tensor, "batch n_heads query d_head"], memory: ProjectedMemory, ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Let each query gather values: softmax(Q K^T / sqrt(d_k)) V (Vaswani et al. 2017, eq. 1)."""
        assert isinstance(memory, KeyValues) and not isinstance(ctx.cache, SumsCache)
        k, v = memory if ctx.cache is None else ctx.cache.append(memory)
        if ctx.visible_keys is not None:
            k, v = k.index_select(2, ctx.visible_keys), v.index_select(2, ctx.visible_keys)
        terms = self.terms(ctx)
        return attend(q, k, v, terms) if ctx.tiles is None else attend_visible(q, k, v, ctx.tiles, terms)

    def project_memory(self, memory: Float[Tensor, "batch key d_model"], segments: Int[Tensor, "batch key"]) -> ProjectedMemory:
        """Project another sequence once for all steps of decoding; where ``segments`` is 0 it is padding."""
        return self.project(memory, AttentionContext())[0]

    def new_cache(self, n_rows: int, max_length: int, like: Tensor, routed: bool = False) -> BlockCache:
        """Make an empty cache of this layer's own earlier tokens.

        Args:
            n_rows: texts side by side.
            max_length: most tokens of each.
            like: has the type and the device.
            routed: whether only chosen tokens pass the layer.
        """
        return (RoutedCache if routed else KeyValueCache)(n_rows, self.n_kv_heads, max_length, self.d_head, self.d_value, like)

    def update_cache(self, x: Float[Tensor, "rows new d_model"], ctx: AttentionContext, first_values: FirstValues | None = None) -> None:
        """Append to the cache what later tokens need of tokens that ask nothing themselves."""
        assert ctx.cache is not None and not isinstance(ctx.cache, SumsCache)
        ctx.cache.append(self.project(x, ctx, first_values)[0])

    def weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return each query's weights of the keys: softmax(Q K^T / sqrt(d_k)) under the mask (Vaswani et al. 2017, eq. 1)."""
        terms = self.terms(ctx)
        return pattern(scores(q, k, terms), terms)

    def terms(self, ctx: AttentionContext) -> Terms:
        """Gather what enters beside queries, keys and values; weights are dropped in training only."""
        return Terms(ctx.mask, ctx.bias, self.dropout if self.training else 0.0, self.softcap, self.sinks)
