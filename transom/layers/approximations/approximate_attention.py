"""Multi-head attention with an approximation of softmax attention, and functions that build the attention layer of a configuration."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.config.approximations import ApproximationConfig
from transom.config.architecture import TransformerConfig
from transom.config.component_registry import build, implementation, implements
from transom.config.components import MultiHeadAttentionConfig
from transom.layers.approximations import linformer, nystrom  # noqa: F401  # each registers its layer
from transom.layers.approximations.approximation import Approximation
from transom.layers.approximations.linear_attention import LinearAttention
from transom.layers.attention import Attention
from transom.layers.cache import BlockCache, KeyValues, LinearAttentionCache, LinearAttentionState, ProjectedMemory
from transom.layers.context import AttentionContext
from transom.layers.value_residual import ValueResidualTerm


def build_approximation(config: ApproximationConfig, d_head: int, n_positions: int) -> Approximation:
    """Build the approximation that ``config`` selects, for heads of width ``d_head`` and at most ``n_positions`` tokens."""
    return build(config, d_head, n_positions)


class ApproximateAttention(Attention):
    """Multi-head attention with an approximation in place of softmax(Q K^T / sqrt(d_k)) V."""

    def __init__(self, config: TransformerConfig) -> None:
        """Initialize the projections and the approximation."""
        super().__init__(config)
        self.approximation = build_approximation(config.attention.approximation, self.d_head, config.n_positions)

    def attend(
        self, q: Float[Tensor, "batch n_heads query d_head"], memory: ProjectedMemory, ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Compute the approximation of softmax(Q K^T / sqrt(d_k)) V."""
        assert ctx.mask is None or isinstance(memory, LinearAttentionState), "an approximation takes a SegmentMask, not a matrix"
        if isinstance(memory, KeyValues) and ctx.cache is None:
            return self.approximation(q, *memory, ctx.segment_mask)
        with torch.autocast(q.device.type, enabled=False):
            return self._step(q, memory, ctx)

    def _step(
        self, q: Float[Tensor, "batch n_heads query d_head"], memory: ProjectedMemory, ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Compute a decoding step of linear attention from the sums over the encoder output or over the cached tokens."""
        assert isinstance(self.approximation, LinearAttention)
        if isinstance(memory, LinearAttentionState):
            return self.approximation.read_out(q.to(memory.sums), memory).to(q.dtype)
        cache = ctx.cache
        assert isinstance(cache, LinearAttentionCache) and ctx.segment_mask is not None
        before = cache.read()
        q_, k, v = (x.to(before.sums) for x in (q, *memory))
        z, sums = self.approximation.chunked_scan(q_, k, v, ctx.segment_mask.queries, before)
        assert sums is not None, "a scan from an initial state returns its final state"
        cache.write(sums, q.shape[2])
        return z.to(q.dtype)

    def project_memory(self, memory: Float[Tensor, "batch key d_model"], segments: Int[Tensor, "batch key"]) -> ProjectedMemory:
        """Return the sums of linear attention over the encoder output; decoding steps need no keys and values."""
        return self._sums(self.project_kv(memory, AttentionContext())[0], segments > 0)

    def update_cache(
        self, x: Float[Tensor, "rows new d_model"], ctx: AttentionContext, value_residual: ValueResidualTerm | None = None
    ) -> None:
        """Add the keys and values of ``x`` to the cached sums without computing attention; early exit needs this for skipped blocks."""
        assert isinstance(ctx.cache, LinearAttentionCache)
        before, new = ctx.cache.read(), self._sums(self.project_kv(x, ctx, value_residual)[0])
        ctx.cache.write(LinearAttentionState(before.sums + new.sums), x.shape[1])

    def _sums(self, memory: KeyValues, key_mask: Bool[Tensor, "batch key"] | None = None) -> LinearAttentionState:
        """Return sum_j phi(k_j) [v_j, 1]^T over keys with ``key_mask`` True, in float32 or wider."""
        assert isinstance(self.approximation, LinearAttention)
        with torch.autocast(memory.k.device.type, enabled=False):
            k, v = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in memory)
            return self.approximation.compute_state(k, v, key_mask)

    def new_cache(self, n_rows: int, max_length: int, like: Tensor, routed: bool = False) -> BlockCache:
        """Allocate zero sums; their size does not depend on ``max_length``."""
        assert isinstance(self.approximation, LinearAttention) and not routed
        return LinearAttentionCache(n_rows, self.n_kv_heads, self.approximation.features, self.d_value, like)

    def attention_weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return the matrix W of attention weights that the approximation implies, so that the output is W V."""
        return self.approximation.implied_weights(q, k, ctx)


@implements(MultiHeadAttentionConfig)
def build_multi_head(config: TransformerConfig) -> Attention:
    """Build multi-head attention, exact or with the approximation that ``config.attention.approximation`` selects."""
    return Attention(config) if config.attention.approximation.kind == "none" else ApproximateAttention(config)


def build_attention(config: TransformerConfig) -> Attention:
    """Build the attention layer that ``config.attention`` selects: multi-head attention, or a plugin's layer."""
    return implementation(config.attention)(config)
