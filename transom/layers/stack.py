"""A stack of blocks: an encoder, or a decoder when it has a memory to attend to."""

from collections.abc import Sequence
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from transom.config import bricks
from transom.config.architecture import Transformer
from transom.config.bricks import PLACEMENTS
from transom.layers.block import Block, ParallelBlock, build_block
from transom.layers.cache import KeyValueCache, KeyValues
from transom.layers.norm import build_norm
from transom.layers.sight import EVERYTHING, Sight
from transom.layers.tap import Scope, scope
from transom.layers.values import FirstValues, ValueResidual, Values


class Stack(nn.Module):
    """Blocks one after another, and a norm behind them unless each block ends with one."""

    def __init__(self, config: Transformer, n_layers: int, cross: bool) -> None:
        """Make ``n_layers`` blocks, with cross-attention or without."""
        super().__init__()
        self.blocks = cast(Sequence[Block | ParallelBlock], nn.ModuleList(build_block(config, cross) for _ in range(n_layers)))
        self.norm = build_norm(config.norm, config.d_model) if PLACEMENTS[config.norm_placement].final_norm else None
        brick = config.attention.value_residual
        mixes = [ValueResidual(brick) for _ in range(n_layers - 1)] if isinstance(brick, bricks.ValueResidual) else []
        self.mixes = cast(Sequence[ValueResidual], nn.ModuleList(mixes))

    def forward(
        self,
        x: Float[Tensor, "rows query d_model"],
        sight: Sight | list[Sight] = EVERYTHING,
        memory: Float[Tensor, "batch key d_model"] | Sequence[KeyValues] | None = None,
        memory_sight: Sight = EVERYTHING,
        caches: Sequence[KeyValueCache] | None = None,
        taps: Scope | None = None,
    ) -> Float[Tensor, "rows query d_model"]:
        """Pass the residual stream through the blocks.

        Args:
            x: the embedded tokens.
            sight: what a token may see of its own sequence, in all blocks or in the first, second, ..., and again from the first.
            memory: the encoder's output, or its keys and values block by block.
            memory_sight: what a token may see of the memory.
            caches: earlier tokens' keys and values, block by block.
            taps: observer.
        """
        first = FirstValues()
        for i, block in enumerate(self.blocks):
            block_memory = memory if memory is None or isinstance(memory, Tensor) else memory[i]
            cache = None if caches is None else caches[i]
            block_sight = sight if isinstance(sight, Sight) else sight[i % len(sight)]
            if self.mixes:
                block_sight = block_sight._replace(values=Values(first, self.mixes[i - 1] if i else None))
            x = block(x, block_sight, block_memory, memory_sight, cache, scope(taps, f"blocks.{i}"))
        real = sight.real if isinstance(sight, Sight) else sight[0].real
        return x if self.norm is None else self.norm(x, scope(taps, "norm"), real)

    def keys_values(self, memory: Float[Tensor, "batch key d_model"]) -> list[KeyValues]:
        """Project a memory to each block's cross-attention keys and values, once for all steps."""
        return [block.cross.keys_values(memory) for block in self.blocks if block.cross is not None]
