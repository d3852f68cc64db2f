"""A stack of blocks: an encoder, or a decoder when it has a memory to attend to."""

from collections.abc import Sequence
from typing import cast

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transom.config import bricks
from transom.config.architecture import Transformer
from transom.config.bricks import PLACEMENTS
from transom.layers.block import Block, ParallelBlock, build_block
from transom.layers.cache import BlockCache, Remembered
from transom.layers.depth import PassBlock
from transom.layers.masks.sight import EVERYTHING, Sight
from transom.layers.norm import build_norm
from transom.layers.tap import Scope, scope
from transom.layers.values import FirstValues, ValueResidual, Values


class Stack(nn.Module):
    """Blocks one after another, and a norm behind them unless each block ends with one."""

    def __init__(self, config: Transformer, n_layers: int, cross: bool) -> None:
        """Make ``n_layers`` blocks, with cross-attention or without."""
        super().__init__()
        self.blocks = cast(Sequence[Block | ParallelBlock], nn.ModuleList(build_block(config, cross, place) for place in range(n_layers)))
        self.norm = build_norm(config.norm, config.d_model) if PLACEMENTS[config.norm_placement].final_norm else None
        brick = config.attention.value_residual
        mixes = [ValueResidual(brick) for _ in range(n_layers - 1)] if isinstance(brick, bricks.ValueResidual) else []
        self.mixes = cast(Sequence[ValueResidual], nn.ModuleList(mixes))

    @property
    def routed(self) -> bool:
        """Tell whether only chosen tokens pass some of the blocks."""
        return any(block.depth is not None for block in self.blocks)

    def forward(
        self,
        x: Float[Tensor, "rows query d_model"],
        sight: Sight | list[Sight] = EVERYTHING,
        memory: Float[Tensor, "batch key d_model"] | Sequence[Remembered] | None = None,
        memory_sight: Sight = EVERYTHING,
        caches: Sequence[BlockCache] | None = None,
        taps: Scope | None = None,
    ) -> Float[Tensor, "rows query d_model"]:
        """Pass the residual stream through the blocks.

        Args:
            x: the embedded tokens.
            sight: what a token may see of its own sequence, in all blocks or in the first, second, ..., and again from the first.
            memory: the encoder's output, or what ``remember`` kept of it block by block.
            memory_sight: what a token may see of the memory.
            caches: earlier tokens' keys and values, block by block.
            taps: observer.
        """
        for i, (block, block_sight) in enumerate(zip(self.blocks, self.sights(sight), strict=True)):
            block_memory = memory if memory is None or isinstance(memory, Tensor) else memory[i]
            cache = None if caches is None else caches[i]
            if block.depth is None:
                x = block(x, block_sight, block_memory, memory_sight, cache, scope(taps, f"blocks.{i}"))
            else:
                passed = _bound(block, block_memory, scope(taps, f"blocks.{i}"))
                x = block.depth(x, passed, block_sight, memory_sight, cache, scope(taps, f"blocks.{i}.depth"))
        return self.ended(x, sight.real if isinstance(sight, Sight) else sight[0].real, taps)

    def ended(
        self, x: Float[Tensor, "rows query d_model"], real: Bool[Tensor, "#rows query"] | None = None, taps: Scope | None = None
    ) -> Float[Tensor, "rows query d_model"]:
        """Give the stack's output if the stream ends here."""
        return x if self.norm is None else self.norm(x, scope(taps, "norm"), real)

    def sights(self, sight: Sight | list[Sight]) -> list[Sight]:
        """Give what each block sees in one pass, and what it does with values."""
        cycle, first = [sight] if isinstance(sight, Sight) else sight, FirstValues()
        seen = [cycle[i % len(cycle)] for i in range(len(self.blocks))]
        if not self.mixes:
            return seen
        return [each._replace(values=Values(first, mix)) for each, mix in zip(seen, (None, *self.mixes), strict=True)]

    def remember(self, memory: Float[Tensor, "batch key d_model"], segments: Int[Tensor, "batch key"]) -> list[Remembered]:
        """Keep what each block's cross-attention needs of a memory, once for all steps; where ``segments`` is 0 it is padding."""
        return [block.cross.remember(memory, segments) for block in self.blocks if block.cross is not None]

    def new_caches(self, n_rows: int, max_length: int, like: Tensor) -> list[BlockCache]:
        """Make an empty memory of earlier tokens for each block; arguments as in ``Attention.new_cache``."""
        return [block.attn.new_cache(n_rows, max_length, like, routed=block.depth is not None) for block in self.blocks]


def _bound(block: Block | ParallelBlock, memory: Tensor | Remembered | None, taps: Scope | None) -> PassBlock:
    """Give a block as a function of what changes where tokens are chosen."""
    return lambda x, sight, memory_sight, cache: block(x, sight, memory, memory_sight, cache, taps)
