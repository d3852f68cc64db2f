"""Attention: masks, scores, softmax weights, the weighted sum of values, and the multi-head module with its projections.

In shapes, ``#axis`` may be 1 and broadcast. ``query`` counts the tokens of this pass, ``key`` all tokens that are attended to, cached ones
included. ``rows`` equals ``batch``, except in the cross-attention of beam search, where each of ``batch`` sources has n_beams rows.
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
from transom.layers.dropout import dropout
from transom.layers.masks.block_sparse_mask import BlockSparseMask
from transom.layers.norm import build_norm
from transom.layers.observe import observe
from transom.layers.position_encoding import apply_rotary
from transom.layers.value_residual import ValueResidualTerm


# Masks for cross-attention (same_segment_mask in training, non_padding_mask in decoding) and for inference backends. The mask of
# self-attention, causal in a decoder and within segments, is built in layers/masks.
def same_segment_mask(queries: Int[Tensor, "batch query"], keys: Int[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 query key"]:
    """Let tokens attend within their own segment. Padding, segment 0, attends to padding only, so that no row is empty."""
    return (queries[:, :, None] == keys[:, None, :])[:, None]


def non_padding_mask(keys: Int[Tensor, "batch key"]) -> Bool[Tensor, "batch 1 1 key"]:
    """Let every query attend to every key that is not padding."""
    return (keys > 0)[:, None, None]


def causal_mask(n_queries: int, n_keys: int, device: torch.device | None = None) -> Bool[Tensor, "1 1 query key"]:
    """Let each query attend to itself and earlier keys; the last query is aligned with the last key."""
    return torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)[None, None]


ScoreFunction = Callable[[Tensor, Tensor], Tensor]
"""Maps queries (batch, n_heads, query, d_head) and keys (batch, n_heads, key, d_head) to scores (batch, n_heads, query, key)."""

implements(ScaledDotProductConfig)(lambda config, d_head: None)  # the product in ``attention_scores``, which kernels compute faster


def build_score_function(config: ComponentConfig, d_head: int) -> ScoreFunction | None:
    """Build the score function of a plugin; return None for the scaled dot product.

    Raises:
        ConfigError: the plugin built no function.
    """
    score: ScoreFunction | None = build(config, d_head)
    if not isinstance(config, ScaledDotProductConfig) and not callable(score):
        raise ConfigError(
            f"component {type(config).__name__}: expected a function of queries and keys, found {score!r}; return one from the"
            " function that @implements decorates"
        )
    return score


def custom_scores(
    q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch n_heads key d_head"], score: ScoreFunction
) -> Float[Tensor, "batch n_heads query key"]:
    """Compute S = score(Q, K) by a plugin's function.

    Raises:
        ConfigError: the result has another shape, which could broadcast silently.
    """
    s, expected = score(q, k), (*q.shape[:3], k.shape[2])
    if not isinstance(s, Tensor) or s.shape != expected:
        found = f"({', '.join(map(str, s.shape))})" if isinstance(s, Tensor) else type(s).__name__
        raise ConfigError(
            f"model.attention.score: expected scores (batch, n_heads, query, key) = ({', '.join(map(str, expected))}), found {found}; fix"
            " the plugin"
        )
    return s


class AttentionArgs(NamedTuple):
    """Arguments of attention besides queries, keys and values.

    Attributes:
        mask: True where a query may attend to a key (causality, packing and padding in one mask); None for no mask.
        bias: added to the scores, for ALiBi and relative positions.
        dropout: probability of dropping an attention weight; 0 in evaluation.
        softcap: c of c tanh(S / c), which bounds the scores (Gemma Team 2024, section 2).
        sinks: one learned logit per head, an extra column of the softmax with value 0 (Agarwal et al. 2025).
        score: a plugin's score function in place of Q K^T / sqrt(d_head); no kernel supports it.
    """

    mask: Bool[Tensor, "#batch #n_heads #query #key"] | None = None
    bias: Float[Tensor, "#batch #n_heads #query #key"] | None = None
    dropout: float = 0.0
    softcap: float | None = None
    sinks: Float[Tensor, "n_heads"] | None = None
    score: ScoreFunction | None = None


DEFAULT_ARGS = AttentionArgs()
"""Scaled dot product without mask, bias, dropout, softcap or sinks."""


def repeat_kv(x: Float[Tensor, "batch kv_heads *positions width"], n_heads: int) -> Float[Tensor, "batch n_heads *positions width"]:
    """Repeat key or value heads: query head h uses head h // g, with g = n_heads / kv_heads (Ainslie et al. 2023)."""
    return x if x.shape[1] == n_heads else x.repeat_interleave(n_heads // x.shape[1], 1)


def attention_scores(
    q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], args: AttentionArgs = DEFAULT_ARGS
) -> Float[Tensor, "batch n_heads query key"]:
    """Compute S = Q K^T / sqrt(d_head) (Vaswani et al. 2017, eq. 1), then c tanh(S / c) with a softcap c, then add the bias."""
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
    weights = dropout(weights, args.dropout, training=True)  # ``args.dropout`` is 0 in evaluation
    return weights.to(v.dtype) @ repeat_kv(v, q.shape[1])


@operation("attention")
def scaled_dot_product_attention(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    args: AttentionArgs = DEFAULT_ARGS,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute ``explicit_attention``, by a fused kernel where one applies (``layers/dispatch.py``)."""
    return explicit_attention(q, k, v, args)


@operation("block_sparse_attention")
def block_sparse_attention(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    block_mask: BlockSparseMask,
    args: AttentionArgs = DEFAULT_ARGS,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute attention with a block-sparse mask. Kernels skip tiles without a visible pair; this reference uses the dense mask."""
    mask, bias = block_mask.dense()
    return scaled_dot_product_attention(q, k, v, args._replace(mask=mask, bias=bias))


class Attention(nn.Module):
    """Multi-head self-attention or cross-attention (Vaswani et al. 2017, section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O, head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i).
    W_Q, W_K, W_V and W_O are separate linear layers ``q``, ``k``, ``v`` and ``o``; GPT-2 has c_attn and c_proj. Dropout here acts on the
    attention weights only; the block drops the output. With fewer key heads than query heads, a group of query heads shares each key head
    (grouped-query attention). Head counts are read from the projections, which hold a part of the heads in tensor parallelism.
    """

    def __init__(self, config: TransformerConfig) -> None:
        """Initialize W_Q (d_model to n_heads * d_head), W_K and W_V (to n_kv_heads * d_head and n_kv_heads * d_value), and W_O."""
        super().__init__()
        options = config.attention
        self.d_head, self.d_value = config.d_head, config.d_value
        self.dropout, self.softcap = config.attention_dropout, options.softcap
        self.q = nn.Linear(config.d_model, config.n_heads * self.d_head, options.qkv_bias)
        self.k = nn.Linear(config.d_model, config.n_kv_heads * self.d_head, options.qkv_bias)
        self.v = nn.Linear(config.d_model, config.n_kv_heads * self.d_value, options.qkv_bias)
        self.o = (
            nn.Linear(config.n_heads * self.d_value, config.d_model, options.output_bias) if options.output_projection else nn.Identity()
        )
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
        """Attend from ``x`` to itself and the cached tokens, or to a memory.

        Args:
            x: input of the queries, and in self-attention of keys and values.
            ctx: mask (dense or block-sparse), score bias, rotary tables, cache and observer. Cross-attention has no bias, rotary tables or
                cache.
            memory: encoder output for cross-attention, or its keys and values by ``project_memory``; None for self-attention. The n_beams
                rows of ``x`` that belong to one row of ``memory`` share its keys.
            value_residual: V_1 and the two scalars, learned or fixed, of V' = lambda_1 V_1 + lambda_2 V; None for V' = V. Attention
                reads V', and the cache stores it. Self-attention only.

        Returns:
            The output, before residual dropout, and V of ``x`` before the mix, which cross-attention ignores.
        """
        projected: ProjectedMemory
        if memory is None or isinstance(memory, Tensor):
            projected, values = self.project_kv(x if memory is None else memory, ctx, value_residual)
        else:
            projected, values = memory, memory[-1]
        q = self.q(x).unflatten(-1, (-1, self.d_head))  # (rows, query, n_heads, d_head)
        q = q.view(len(projected[0]), -1, *q.shape[2:])  # (batch, n_beams * query, n_heads, d_head); rows = batch in self-attention
        q = q.transpose(1, 2)
        if self.q_norm is not None:
            q = self.q_norm(q, ctx)
        q = apply_rotary(q, ctx.rotary)  # RoPE; unchanged if ``ctx.rotary`` is None, as with learned positions
        q = observe(ctx, self, "q", q)
        z = self.attend(q, projected, ctx)  # (batch, n_heads, n_beams * query, d_value)
        z = observe(ctx, self, "z", z)
        z = z.transpose(1, 2).reshape(*x.shape[:2], -1)  # (rows, query, n_heads * d_value)
        return self.o(z), values

    def project_kv(
        self, x: Float[Tensor, "batch length d_model"], ctx: AttentionContext, value_residual: ValueResidualTerm | None = None
    ) -> tuple[KeyValues, Float[Tensor, "batch kv_heads length d_value"]]:
        """Project ``x`` to keys and values per head; return them, after RoPE and the mix with V_1, and the values before the mix.

        ``length`` counts the tokens of ``x``: the new tokens in self-attention, those of the encoder output in cross-attention.
        """
        k = self.k(x).unflatten(-1, (-1, self.d_head)).transpose(1, 2)  # (batch, kv_heads, length, d_head)
        own = self.v(x).unflatten(-1, (-1, self.d_value)).transpose(1, 2)  # (batch, kv_heads, length, d_value)
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
        """Compute softmax(Q K^T / sqrt(d_head)) V over the projected and the cached keys (Vaswani et al. 2017, eq. 1).

        With a cache, ``memory`` holds the new tokens only; the KV cache appends them, and the queries attend to all tokens so far.
        ``ctx.key_indices``, (key,), are the indices of the few keys that are visible to a single new token under a sparse pattern.
        ``ctx.block_mask`` is the block-sparse form of mask and bias for long sequences, in place of ``ctx.mask`` and ``ctx.bias``.
        """
        assert isinstance(memory, KeyValues) and not isinstance(ctx.cache, LinearAttentionCache)
        k, v = memory if ctx.cache is None else ctx.cache.update(memory)  # KV cache
        if ctx.key_indices is not None:
            k, v = k.index_select(2, ctx.key_indices), v.index_select(2, ctx.key_indices)
        args = self.attention_args(ctx)
        return (
            scaled_dot_product_attention(q, k, v, args) if ctx.block_mask is None else block_sparse_attention(q, k, v, ctx.block_mask, args)
        )

    def attention_args(self, ctx: AttentionContext) -> AttentionArgs:
        """Return mask, bias, dropout (0 in evaluation), softcap, sinks and score function."""
        return AttentionArgs(ctx.mask, ctx.bias, self.dropout if self.training else 0.0, self.softcap, self.sinks, self.score)

    def project_memory(self, memory: Float[Tensor, "batch key d_model"], segments: Int[Tensor, "batch key"]) -> ProjectedMemory:
        """Project the encoder output to keys and values, once for all decoding steps.

        ``segments`` is 0 at padding. Linear attention needs it for its sums; here ``ctx.mask`` hides padding.
        """
        return self.project_kv(memory, AttentionContext())[0]

    def new_cache(self, n_rows: int, max_length: int, like: Tensor, routed: bool = False) -> BlockCache:
        """Allocate an empty key-value cache for self-attention.

        Args:
            n_rows: batch size, times n_beams.
            max_length: capacity in tokens per row.
            like: tensor whose dtype and device the cache takes.
            routed: whether the block has a mixture-of-depths router; its cache also records the selected tokens.
        """
        return (RoutedKVCache if routed else KVCache)(n_rows, self.n_kv_heads, max_length, self.d_head, self.d_value, like)

    def update_cache(
        self, x: Float[Tensor, "rows new d_model"], ctx: AttentionContext, value_residual: ValueResidualTerm | None = None
    ) -> None:
        """Append keys and values of ``x`` to the cache without computing attention, for tokens that exited early."""
        assert ctx.cache is not None and not isinstance(ctx.cache, LinearAttentionCache)
        ctx.cache.update(self.project_kv(x, ctx, value_residual)[0])

    def attention_weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Compute softmax(Q K^T / sqrt(d_head)) from recorded ``q`` and ``k``, for inspection; masks in ``ctx`` must be dense."""
        args = self.attention_args(ctx)
        return attention_weights(attention_scores(q, k, args), args)


@runtime_checkable
class SupportsAttentionWeights(Protocol):
    """An attention layer whose weights can be recomputed from recorded ``q`` and ``k``, for inspection; no forward pass calls it."""

    def attention_weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return the attention weights; masked keys have weight 0."""
        ...
