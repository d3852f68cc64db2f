"""A stack of blocks: an encoder, or a decoder when it has a memory to attend to."""

from collections.abc import Sequence
from typing import cast

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transom.config import bricks
from transom.config.architecture import Transformer
from transom.config.bricks import PLACEMENTS
from transom.layers.block import Block, ParallelBlock, build_block
from transom.layers.cache import KeyValueCache, KeyValues, RoutedCache
from transom.layers.depth import PassBlock
from transom.layers.norm import build_norm
from transom.layers.sight import EVERYTHING, Sight
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

    def keys_values(self, memory: Float[Tensor, "batch key d_model"]) -> list[KeyValues]:
        """Project a memory to each block's cross-attention keys and values, once for all steps."""
        return [block.cross.keys_values(memory) for block in self.blocks if block.cross is not None]

    def caches(self, n_rows: int, max_length: int, like: Tensor) -> list[KeyValueCache]:
        """Reserve room for ``max_length`` tokens a row in each block's cache, in the type and on the device of ``like``."""
        kinds = [KeyValueCache if block.depth is None else RoutedCache for block in self.blocks]
        widths = [(block.attn.n_kv_heads, max_length, block.attn.d_head, block.attn.d_value) for block in self.blocks]
        return [kind(n_rows, *sizes, like=like) for kind, sizes in zip(kinds, widths, strict=True)]


def _bound(block: Block | ParallelBlock, memory: Tensor | KeyValues | None, taps: Scope | None) -> PassBlock:
    """Give a block as a function of what changes where tokens are chosen."""
    return lambda x, sight, memory_sight, cache: block(x, sight, memory, memory_sight, cache, taps)
