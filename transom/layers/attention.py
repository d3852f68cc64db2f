"""Attention: masks, scores, softmax weights, the weighted sum of values, and the multi-head module with its projections.

In shapes, an axis written ``#axis`` may have size 1 and then broadcasts. ``query`` is the number of tokens of this forward pass, ``key``
the number of tokens that are attended to, cached tokens included. ``rows`` equals ``batch``, except in cross-attention during beam search,
where each of ``batch`` source sentences has n_beams rows.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transom.config.architecture import TransformerConfig
from transom.config.component_registry import build, implements
from transom.config.components import ScaledDotProductConfig
from transom.config.schema import ComponentConfig
from transom.errors import ConfigError
from transom.layers.cache import BlockCache, KeyValues, KVCache, LinearAttentionCache, ProjectedMemory, RoutedKVCache
from transom.layers.context import AttentionContext
from transom.layers.dispatch import operation
from transom.layers.dropout import DropoutSite, KeyedMasks, dropout
from transom.layers.feed_forward import Linear, project
from transom.layers.masks.block_sparse_mask import BlockSparseMask
from transom.layers.norm import build_norm
from transom.layers.observe import observe
from transom.layers.position_encoding import apply_rotary
from transom.layers.value_residual import ValueResidualTerm


# Masks for cross-attention in decoding (non_padding_mask) and for inference backends. The masks of cross-attention in training and of
# self-attention, causal in a decoder and within segments, are built in layers/masks.
def same_segment_mask(queries: Int[Tensor, "batch query"], keys: Int[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 query key"]:
    """Return a mask that is True where query and key have the same segment id. Padding, segment 0, attends to padding only."""
    return (queries[:, :, None] == keys[:, None, :])[:, None]


def non_padding_mask(keys: Int[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 1 key"]:
    """Return a mask that is True at every key except padding (segment id 0), for every query."""
    return (keys > 0)[:, None, None]


def causal_mask(n_queries: int, n_keys: int, device: torch.device | None = None) -> Bool[Tensor, "1 1 query key"]:
    """Return a mask by which each query attends to its own token and earlier ones; the queries are the last of the ``n_keys`` tokens."""
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)[None, None]


ScoreFunction = Callable[[Tensor, Tensor], Tensor]
"""Maps queries (batch, n_heads, query, d_head) and keys (batch, n_heads, key, d_head) to scores (batch, n_heads, query, key)."""

implements(ScaledDotProductConfig)(lambda config, d_head: None)  # the product in ``attention_scores``, which kernels compute faster


def build_score_function(config: ComponentConfig, d_head: int) -> ScoreFunction | None:
    """Build the score function that ``config`` selects: a plugin's function, or None for the scaled dot product.

    Raises:
        ConfigError: the plugin returned something that cannot be called.
    """
    score: ScoreFunction | None = build(config, d_head)
    if not isinstance(config, ScaledDotProductConfig) and not callable(score):
        raise ConfigError(
            f"component {type(config).__name__}: expected a score function of queries and keys, found {score!r}; return one"
            " from the function that @implements decorates"
        )
    return score


def custom_scores(
    q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch n_heads key d_head"], score: ScoreFunction
) -> Float[Tensor, "batch n_heads query key"]:
    """Compute the attention scores S = score(Q, K) with a plugin's score function.

    Raises:
        ConfigError: the scores are not of shape (batch, n_heads, query, key); a wrong shape could broadcast silently.
    """
    s, expected = score(q, k), (*q.shape[:3], k.shape[2])
    if not isinstance(s, Tensor) or s.shape != expected:
        found = f"({', '.join(map(str, s.shape))})" if isinstance(s, Tensor) else type(s).__name__
        raise ConfigError(
            f"model.attention.score: expected scores of shape (batch, n_heads, query, key) = ({', '.join(map(str, expected))}),"
            f" found {found}; correct the plugin's score function"
        )
    return s


class AttentionArgs(NamedTuple):
    """Arguments of attention besides queries, keys and values.

    Attributes:
        mask: True where a query may attend to a key (causality, packing and padding in one mask); None for no mask.
        bias: term that ALiBi or a relative position bias adds to the scores; None for no bias.
        dropout: probability of dropping an attention weight; 0 in evaluation.
        softcap: c of c tanh(S / c), which bounds the scores (Gemma Team 2024, section 2); None for no softcap.
        sinks: one learned logit per head, which joins the softmax as an extra key with value 0 (Agarwal et al. 2025); None for no sinks.
        score: a plugin's score function, which no kernel supports; None for Q K^T / sqrt(d_head).
        dropout_masks: keyed dropout masks of the weights; None for masks from PyTorch's generator.
    """

    mask: Bool[Tensor, "#batch #n_heads #query #key"] | None = None
    bias: Float[Tensor, "#batch #n_heads #query #key"] | None = None
    dropout: float = 0.0
    softcap: float | None = None
    sinks: Float[Tensor, "n_heads"] | None = None
    score: ScoreFunction | None = None
    dropout_masks: KeyedMasks | None = None


DEFAULT_ARGS = AttentionArgs()
"""Arguments of plain scaled dot-product attention: no mask, bias, dropout, softcap or sinks."""


def repeat_kv(x: Float[Tensor, "batch kv_heads *positions width"], n_heads: int) -> Float[Tensor, "batch n_heads *positions width"]:
    """Repeat key or value heads, so that query head h reads key-value head h // g with g = n_heads / kv_heads (Ainslie et al. 2023)."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], 1)


def attention_scores(
    q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], args: AttentionArgs = DEFAULT_ARGS
) -> Float[Tensor, "batch n_heads query key"]:
    """Compute S = Q K^T / sqrt(d_head) (Vaswani et al. 2017, eq. 1); apply the softcap c tanh(S / c), if any; add the bias, if any."""
    k = repeat_kv(k, q.shape[1])
    s = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1) if args.score is None else custom_scores(q, k, args.score)
    if args.softcap is not None:
        s = args.softcap * torch.tanh(s / args.softcap)
    return s if args.bias is None else s + args.bias


def attention_weights(
    s: Float[Tensor, "batch n_heads query key"], args: AttentionArgs = DEFAULT_ARGS
) -> Float[Tensor, "batch n_heads query key"]:
    """Compute attention weights: the softmax of the scores over the visible keys and the sink, in float32 or wider.

    A query with no visible key has weights 0, not NaN. With a sink, the weights of a query sum to less than 1.
    """
    s = s.to(torch.promote_types(s.dtype, torch.float32))
    mask = args.mask
    if mask is not None:
        s = s.masked_fill(~mask, torch.finfo(s.dtype).min)
    if args.sinks is None:
        weights = s.softmax(-1)
    else:
        sink = args.sinks.to(s.dtype)[:, None, None].expand(len(s), -1, s.shape[2], 1)
        weights = torch.cat([s, sink], -1).softmax(-1)[..., :-1]
    return weights if mask is None else weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def explicit_attention(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    args: AttentionArgs = DEFAULT_ARGS,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute Attention(Q, K, V) = Dropout(softmax(Q K^T / sqrt(d_head))) V (Vaswani et al. 2017, eq. 1)."""
    weights = attention_weights(attention_scores(q, k, args), args)  # (batch, n_heads, query, key)
    weights = dropout(weights, args.dropout, True, args.dropout_masks)  # ``args.dropout`` is 0 in evaluation
    return weights.to(v.dtype) @ repeat_kv(v, q.shape[1])


@operation("attention")
def scaled_dot_product_attention(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    args: AttentionArgs = DEFAULT_ARGS,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute the result of ``explicit_attention``, with a faster kernel if one supports the arguments (``layers/dispatch.py``)."""
    return explicit_attention(q, k, v, args)


@operation("block_sparse_attention")
def block_sparse_attention(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    block_mask: BlockSparseMask,
    args: AttentionArgs = DEFAULT_ARGS,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute attention with a block-sparse mask. Kernels skip tiles without a visible query-key pair; this reference does not."""
    mask, bias = block_mask.dense()
    return scaled_dot_product_attention(q, k, v, args._replace(mask=mask, bias=bias))


class Attention(DropoutSite, nn.Module):
    """Multi-head self-attention or cross-attention (Vaswani et al. 2017, section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O, head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i).
    W_Q, W_K, W_V and W_O are separate linear layers ``q``, ``k``, ``v`` and ``o``; in GPT-2, c_attn is the first three and c_proj the last.
    Dropout here acts on the attention weights only; the block applies dropout to the output. ``offsets`` of the masks are the first (head,
    query, key) that this process holds. With fewer key heads than query heads, a group
    of query heads shares each key head (grouped-query attention). ``n_heads`` and ``n_kv_heads`` are read from the shapes of the
    projections, because in tensor parallelism a process holds only some of the heads.
    """

    def __init__(self, config: TransformerConfig) -> None:
        """Initialize W_Q (d_model to n_heads * d_head), W_K and W_V (to n_kv_heads * d_head and n_kv_heads * d_value), and W_O."""
        super().__init__()
        options = config.attention
        self.d_head, self.d_value = config.d_head, config.d_value
        self.dropout, self.softcap = config.attention_dropout, options.softcap
        self.q = Linear(config.d_model, config.n_heads * self.d_head, options.qkv_bias)
        self.k = Linear(config.d_model, config.n_kv_heads * self.d_head, options.qkv_bias)
        self.v = Linear(config.d_model, config.n_kv_heads * self.d_value, options.qkv_bias)
        self.o = Linear(config.n_heads * self.d_value, config.d_model, options.output_bias) if options.output_projection else nn.Identity()
        normed = options.qk_norm.kind != "none"
        self.q_norm, self.k_norm = (build_norm(options.qk_norm, self.d_head) if normed else None for _ in range(2))
        self.sinks = nn.Parameter(torch.zeros(config.n_heads)) if options.sinks else None
        self.score = build_score_function(options.score, self.d_head)

    @property
    def n_heads(self) -> int:
        """Number of query heads."""
        return self.q.weight.shape[0] // self.d_head

    @property
    def n_kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.k.weight.shape[0] // self.d_head

    def forward(
        self,
        x: Float[Tensor, "rows query d_model"],
        ctx: AttentionContext = AttentionContext(),
        memory: Float[Tensor, "batch key d_model"] | ProjectedMemory | None = None,
        value_residual: ValueResidualTerm | None = None,
    ) -> tuple[Float[Tensor, "rows query d_model"], Float[Tensor, "batch kv_heads length d_value"]]:
        """Compute self-attention over ``x`` and the cached tokens, or cross-attention from ``x`` to ``memory``.

        Args:
            x: vectors that are projected to queries, in self-attention also to keys and values.
            ctx: mask (dense or block-sparse), score bias, rotary tables, cache and observer. Cross-attention has no bias, rotary tables or
                cache.
            memory: encoder output for cross-attention, or the result of ``project_memory`` for it; None for self-attention. In beam search
                n_beams successive rows of ``x`` attend to the same row of ``memory``.
            value_residual: V_1 and the two scalars, learned or fixed, of V' = lambda_1 V_1 + lambda_2 V; None for V' = V. Attention
                reads V', and the cache stores V'. Self-attention only.

        Returns:
            The output before residual dropout, and V, the values of ``x`` before the mix with V_1. Callers of cross-attention ignore V.
        """
        projected: ProjectedMemory
        if memory is None:
            k, v, q = project(x, self.k, self.v, self.q)
            projected, values = self._split_kv(k, v, ctx, value_residual)
        else:
            (q,) = project(x, self.q)
            projected, values = self.project_kv(memory, ctx) if isinstance(memory, Tensor) else (memory, memory[-1])
        q = q.unflatten(-1, (-1, self.d_head))  # (rows, query, n_heads, d_head)
        q = q.view(len(projected[0]), -1, *q.shape[2:])  # (batch, n_beams * query, n_heads, d_head); rows = batch in self-attention
        q = q.transpose(1, 2)
        if self.q_norm is not None:
            q = self.q_norm(q, ctx)
        q = apply_rotary(q, ctx.rotary)  # RoPE; unchanged if ``ctx.rotary`` is None, as with learned positions
        q = observe(ctx, self, "q", q)
        z = self.attend(q, projected, ctx)  # (batch, n_heads, n_beams * query, d_value)
        z = observe(ctx, self, "z", z)
        z = z.transpose(1, 2).reshape(*x.shape[:2], z.shape[1] * z.shape[3])  # (rows, query, n_heads * d_value); query may be 0
        return self.o(z), values

    def project_kv(
        self, x: Float[Tensor, "batch length d_model"], ctx: AttentionContext, value_residual: ValueResidualTerm | None = None
    ) -> tuple[KeyValues, Float[Tensor, "batch kv_heads length d_value"]]:
        """Project ``x`` to keys and values per head.

        ``length`` is the number of tokens of ``x``: new tokens in self-attention, tokens of the encoder output in cross-attention.

        Returns:
            The keys after RoPE and the values after the mix with V_1, and the values before the mix.
        """
        k, v = project(x, self.k, self.v)
        return self._split_kv(k, v, ctx, value_residual)

    def _split_kv(
        self,
        k: Float[Tensor, "batch length ..."],
        v: Float[Tensor, "batch length ..."],
        ctx: AttentionContext,
        value_residual: ValueResidualTerm | None,
    ) -> tuple[KeyValues, Float[Tensor, "batch kv_heads length d_value"]]:
        """Split projected keys and values into heads, then normalize and rotate the keys and mix the values; result of ``project_kv``."""
        k = k.unflatten(-1, (-1, self.d_head)).transpose(1, 2)  # (batch, kv_heads, length, d_head)
        own = v.unflatten(-1, (-1, self.d_value)).transpose(1, 2)  # (batch, kv_heads, length, d_value)
        if self.k_norm is not None:
            k = self.k_norm(k, ctx)
        k = apply_rotary(k, ctx.rotary)  # RoPE
        k = observe(ctx, self, "k", k)
        v = own if value_residual is None else value_residual.mix(own)
        v = observe(ctx, self, "v", v)
        return KeyValues(k, v), own

    def attend(
        self, q: Float[Tensor, "batch n_heads query d_head"], memory: ProjectedMemory, ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Compute softmax(Q K^T / sqrt(d_head)) V over the keys of ``memory`` and of the cache (Vaswani et al. 2017, eq. 1).

        With a cache, ``memory`` holds the keys and values of the new tokens. They are appended to the cache, and the queries attend to all
        cached tokens. ``ctx.key_indices``, (key,), are the indices of the few cached keys that a sparse pattern makes visible to a single
        new token. ``ctx.block_mask``, built for long sequences, replaces ``ctx.mask`` and ``ctx.bias``.
        """
        assert isinstance(memory, KeyValues) and not isinstance(ctx.cache, LinearAttentionCache)
        k, v = memory if ctx.cache is None else ctx.cache.update(memory)  # KV cache
        if ctx.key_indices is not None:
            k, v = k.index_select(2, ctx.key_indices), v.index_select(2, ctx.key_indices)
        args = self.attention_args(ctx)
        if args.dropout:
            args = args._replace(dropout_masks=self.dropout_masks(q))
        return (
            scaled_dot_product_attention(q, k, v, args) if ctx.block_mask is None else block_sparse_attention(q, k, v, ctx.block_mask, args)
        )

    def attention_args(self, ctx: AttentionContext) -> AttentionArgs:
        """Return the arguments of this layer's attention in a pass with context ``ctx``; dropout is 0 in evaluation."""
        return AttentionArgs(ctx.mask, ctx.bias, self.dropout if self.training else 0.0, self.softcap, self.sinks, self.score)

    def project_memory(self, memory: Float[Tensor, "batch key d_model"], segments: Int[Tensor, "batch key"]) -> ProjectedMemory:
        """Project the encoder output to keys and values, once for all decoding steps.

        ``segments`` is 0 at padding. Linear attention reads it to leave padding out of its sums; this class does not, because the mask
        hides padding.
        """
        return self.project_kv(memory, AttentionContext())[0]

    def new_cache(self, n_rows: int, max_length: int, like: Tensor, routed: bool = False) -> BlockCache:
        """Allocate an empty key-value cache for self-attention.

        Args:
            n_rows: rows of the cache: batch size times n_beams.
            max_length: capacity in tokens per row.
            like: tensor with the dtype and device of the cache.
            routed: whether the block has a mixture-of-depths router; the cache then records which tokens the router selected.
        """
        return (RoutedKVCache if routed else KVCache)(n_rows, self.n_kv_heads, max_length, self.d_head, self.d_value, like)

    def update_cache(
        self, x: Float[Tensor, "rows new d_model"], ctx: AttentionContext, value_residual: ValueResidualTerm | None = None
    ) -> None:
        """Append keys and values of ``x`` to the cache without computing attention; early exit needs this for blocks that a token skips."""
        assert ctx.cache is not None and not isinstance(ctx.cache, LinearAttentionCache)
        ctx.cache.update(self.project_kv(x, ctx, value_residual)[0])

    def attention_weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Compute softmax(Q K^T / sqrt(d_head)) from recorded ``q`` and ``k``, for inspection; the mask in ``ctx`` must be dense."""
        args = self.attention_args(ctx)
        return attention_weights(attention_scores(q, k, args), args)


@runtime_checkable
class SupportsAttentionWeights(Protocol):
    """Attention layers whose weights can be recomputed from recorded ``q`` and ``k``, for inspection; no forward pass needs the method."""

    def attention_weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return the attention weights; masked keys have weight 0."""
        ...
