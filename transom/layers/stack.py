"""A stack of blocks: an encoder, a decoder with cross-attention, or a decoder-only stack."""

from collections.abc import Sequence
from typing import cast

from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config import components
from transom.config.architecture import TransformerConfig
from transom.config.components import NORM_PLACEMENTS
from transom.layers.block import ParallelBlock, SequentialBlock, build_block
from transom.layers.cache import BlockCache, ProjectedMemory
from transom.layers.context import StackContext
from transom.layers.norm import build_norm
from transom.layers.value_residual import ValueResidual, ValueResidualTerm


class Stack(nn.Module):
    """A sequence of blocks, followed by a final norm unless each block already ends with a norm."""

    def __init__(self, config: TransformerConfig, n_layers: int, cross: bool) -> None:
        """Initialize ``n_layers`` blocks; ``cross`` adds cross-attention to each of them."""
        super().__init__()
        blocks = nn.ModuleList(build_block(config, cross, layer_index) for layer_index in range(n_layers))
        self.blocks = cast(Sequence[SequentialBlock | ParallelBlock], blocks)
        self.norm = build_norm(config.norm, config.d_model) if NORM_PLACEMENTS[config.norm_placement].final_norm else None
        options = config.attention.value_residual
        value_residuals = (
            [ValueResidual(options) for _ in range(n_layers - 1)] if isinstance(options, components.ValueResidualConfig) else []
        )
        self.value_residuals = cast(Sequence[ValueResidual], nn.ModuleList(value_residuals))

    @property
    def routed(self) -> bool:
        """Whether some blocks have a mixture-of-depths router."""
        return any(block.depth is not None for block in self.blocks)

    def forward(
        self,
        x: Float[Tensor, "rows query d_model"],
        ctx: StackContext = StackContext(),
        memory: Float[Tensor, "batch key d_model"] | Sequence[ProjectedMemory] | None = None,
    ) -> Float[Tensor, "rows query d_model"]:
        """Return the residual stream after all blocks and the final norm.

        Args:
            x: embedded tokens.
            ctx: masks, rotary tables and caches.
            memory: encoder output, or the result of ``project_memory`` for it; None without cross-attention.
        """
        first_block_values = None
        for i, block in enumerate(self.blocks):
            block_memory = memory if memory is None or isinstance(memory, Tensor) else memory[i]
            value_residual = self.value_residual_of(i, first_block_values)
            if block.depth is None:
                x, values = block(x, ctx.for_block(i), block_memory, value_residual)
                first_block_values = values if i == 0 else first_block_values
            else:
                x = block.depth(x, block, ctx.for_block(i), block_memory, value_residual)
        return self.final_norm(x, ctx)

    def value_residual_of(self, layer_index: int, first: Float[Tensor, "batch kv_heads key d_value"] | None) -> ValueResidualTerm | None:
        """Return V_1 (``first``) and the mixing weights of block ``layer_index``; None for block 0 and without value residuals."""
        return self.value_residuals[layer_index - 1](first) if layer_index and self.value_residuals else None

    def final_norm(self, x: Float[Tensor, "rows query d_model"], ctx: StackContext) -> Float[Tensor, "rows query d_model"]:
        """Apply the final norm, or return ``x`` if the stack has none. Early exit calls this after an earlier block."""
        return x if self.norm is None else self.norm(x, ctx)

    def project_memory(self, memory: Float[Tensor, "batch key d_model"], segments: Int[Tensor, "batch key"]) -> list[ProjectedMemory]:
        """Project the encoder output for the cross-attention of each block, once for all decoding steps; ``segments`` is 0 at padding."""
        return [block.cross.project_memory(memory, segments) for block in self.blocks if block.cross is not None]

    def new_caches(self, n_rows: int, max_length: int, like: Tensor) -> list[BlockCache]:
        """Allocate an empty cache per block; arguments as in ``Attention.new_cache``."""
        return [block.attn.new_cache(n_rows, max_length, like, routed=block.depth is not None) for block in self.blocks]
