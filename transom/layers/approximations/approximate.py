"""Multi-head attention with an approximation of softmax attention, and the builder that selects it."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.config.approximations import ApproximationBrick
from transom.config.architecture import Transformer
from transom.config.bricks import MultiHead
from transom.config.components import build, implementation, implements
from transom.layers.approximations import linformer, nystrom  # noqa: F401  # each registers its layer
from transom.layers.approximations.approximation import Approximation
from transom.layers.approximations.linear_attention import KernelAttention
from transom.layers.attention import Attention
from transom.layers.cache import BlockCache, KeyValues, ProjectedMemory, Sums, SumsCache
from transom.layers.context import AttentionContext
from transom.layers.value_residual import FirstValues


def build_approximation(brick: ApproximationBrick, d_head: int, n_positions: int) -> Approximation:
    """Build the approximation of a configuration, for heads of width ``d_head`` and at most ``n_positions`` tokens."""
    return build(brick, d_head, n_positions)


class ApproximateAttention(Attention):
    """Multi-head attention with an approximation in place of softmax(Q K^T / sqrt(d_k)) V."""

    def __init__(self, config: Transformer) -> None:
        """Initialize the projections and the approximation."""
        super().__init__(config)
        self.approximation = build_approximation(config.attention.approximation, self.d_head, config.n_positions)

    def gather(
        self, q: Float[Tensor, "batch n_heads query d_head"], memory: ProjectedMemory, ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Compute the approximation of softmax(Q K^T / sqrt(d_k)) V."""
        assert ctx.mask is None or isinstance(memory, Sums), "an approximation takes a SegmentMask, not a matrix"
        if isinstance(memory, KeyValues) and ctx.cache is None:
            return self.approximation(q, *memory, ctx.segments)
        with torch.autocast(q.device.type, enabled=False):
            return self._step(q, memory, ctx)

    def _step(
        self, q: Float[Tensor, "batch n_heads query d_head"], memory: ProjectedMemory, ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Compute a decoding step from sums: those of the encoder output, or those of the cached tokens."""
        assert isinstance(self.approximation, KernelAttention)
        if isinstance(memory, Sums):
            return self.approximation.read(q.to(memory.sums), memory).to(q.dtype)
        cache = ctx.cache
        assert isinstance(cache, SumsCache) and ctx.segments is not None
        before = cache.read()
        q_, k, v = (x.to(before.sums) for x in (q, *memory))
        z, sums = self.approximation.go_on(q_, k, v, ctx.segments.queries, before)
        assert sums is not None, "a scan from an initial state returns its final state"
        cache.write(sums, q.shape[2])
        return z.to(q.dtype)

    def project_memory(self, memory: Float[Tensor, "batch key d_model"], segments: Int[Tensor, "batch key"]) -> ProjectedMemory:
        """Return the sums over the encoder output, which are all that decoding steps need."""
        return self._sums(self.project(memory, AttentionContext())[0], segments > 0)

    def update_cache(self, x: Float[Tensor, "rows new d_model"], ctx: AttentionContext, first_values: FirstValues | None = None) -> None:
        """Add ``x`` to the cached sums without computing attention, for tokens that exited early."""
        assert isinstance(ctx.cache, SumsCache)
        before, new = ctx.cache.read(), self._sums(self.project(x, ctx, first_values)[0])
        ctx.cache.write(Sums(before.sums + new.sums), x.shape[1])

    def _sums(self, memory: KeyValues, asked: Bool[Tensor, "batch key"] | None = None) -> Sums:
        """Return sum_j phi(k_j) [v_j, 1]^T, in float32 or wider."""
        assert isinstance(self.approximation, KernelAttention)
        with torch.autocast(memory.k.device.type, enabled=False):
            k, v = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in memory)
            return self.approximation.sums(k, v, asked)

    def new_cache(self, n_rows: int, max_length: int, like: Tensor, routed: bool = False) -> BlockCache:
        """Allocate zero sums; their size does not depend on ``max_length``."""
        assert isinstance(self.approximation, KernelAttention) and not routed
        return SumsCache(n_rows, self.n_kv_heads, self.approximation.features, self.d_value, like)

    def weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"], ctx: AttentionContext
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return the attention weights that the approximation implies, as a matrix."""
        return self.approximation.implied_weights(q, k, ctx)


@implements(MultiHead)
def build_multi_head(config: Transformer) -> Attention:
    """Build exact or approximate attention."""
    return Attention(config) if config.attention.approximation.kind == "none" else ApproximateAttention(config)


def build_attention(config: Transformer) -> Attention:
    """Build the attention layer of a configuration."""
    return implementation(config.attention)(config)
