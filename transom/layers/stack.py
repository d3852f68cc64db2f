"""A stack of blocks: an encoder, a decoder with cross-attention, or a decoder-only stack."""

from collections.abc import Sequence
from typing import cast

from jaxtyping import Float, Int
from torch import Tensor, nn

from transom.config import bricks
from transom.config.architecture import Transformer
from transom.config.bricks import PLACEMENTS
from transom.layers.block import ParallelBlock, SequentialBlock, build_block
from transom.layers.cache import BlockCache, ProjectedMemory
from transom.layers.context import StackContext
from transom.layers.norm import build_norm
from transom.layers.value_residual import FirstValues, ValueResidual


class Stack(nn.Module):
    """A sequence of blocks, and a final norm unless each block ends with one."""

    def __init__(self, config: Transformer, n_layers: int, cross: bool) -> None:
        """Initialize ``n_layers`` blocks; ``cross`` adds cross-attention."""
        super().__init__()
        blocks = nn.ModuleList(build_block(config, cross, place) for place in range(n_layers))
        self.blocks = cast(Sequence[SequentialBlock | ParallelBlock], blocks)
        self.norm = build_norm(config.norm, config.d_model) if PLACEMENTS[config.norm_placement].final_norm else None
        brick = config.attention.value_residual
        mixes = [ValueResidual(brick) for _ in range(n_layers - 1)] if isinstance(brick, bricks.ValueResidual) else []
        self.mixes = cast(Sequence[ValueResidual], nn.ModuleList(mixes))

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
        """Pass the residual stream through the blocks.

        Args:
            x: embedded tokens.
            ctx: masks, rotary tables and caches.
            memory: encoder output, or its projection per block by ``project_memory``.
        """
        first_values = None
        for i, block in enumerate(self.blocks):
            block_memory = memory if memory is None or isinstance(memory, Tensor) else memory[i]
            shared = self.shared_values(i, first_values)
            if block.depth is None:
                x, values = block(x, ctx.block(i), block_memory, shared)
                first_values = values if i == 0 else first_values
            else:
                x = block.depth(x, block, ctx.block(i), block_memory, shared)
        return self.final_norm(x, ctx)

    def shared_values(self, place: int, first: Float[Tensor, "batch kv_heads key d_value"] | None) -> FirstValues | None:
        """Return V_1 and the mixing weights of block ``place``; None for block 0 and without value residuals."""
        return self.mixes[place - 1](first) if place and self.mixes else None

    def final_norm(self, x: Float[Tensor, "rows query d_model"], ctx: StackContext) -> Float[Tensor, "rows query d_model"]:
        """Apply the final norm, if there is one; early exit applies it after an earlier block."""
        return x if self.norm is None else self.norm(x, ctx)

    def project_memory(self, memory: Float[Tensor, "batch key d_model"], segments: Int[Tensor, "batch key"]) -> list[ProjectedMemory]:
        """Project the encoder output for the cross-attention of each block, once for all decoding steps; ``segments`` is 0 at padding."""
        return [block.cross.project_memory(memory, segments) for block in self.blocks if block.cross is not None]

    def new_caches(self, n_rows: int, max_length: int, like: Tensor) -> list[BlockCache]:
        """Allocate an empty cache per block; arguments as in ``Attention.new_cache``."""
        return [block.attn.new_cache(n_rows, max_length, like, routed=block.depth is not None) for block in self.blocks]
