"""A stack of blocks: an encoder, or a decoder when it has a memory to attend to."""

from collections.abc import Sequence
from typing import cast

from jaxtyping import Bool, Float
from torch import Tensor, nn

from transom.config.model import Seq2Seq
from transom.layers.block import Block
from transom.layers.cache import KeyValueCache, KeyValues
from transom.layers.norm import LayerNorm
from transom.layers.tap import Scope, scope


class Stack(nn.Module):
    """Blocks one after another; pre-norm ends with a norm of its own, since its residual stream was never normalised."""

    def __init__(self, config: Seq2Seq, n_layers: int, cross: bool) -> None:
        """Make ``n_layers`` blocks, with cross-attention or without."""
        super().__init__()
        self.blocks = cast(Sequence[Block], nn.ModuleList(Block(config, cross) for _ in range(n_layers)))
        self.norm = LayerNorm(config.norm, config.d_model) if config.norm_placement == "pre" else None

    def forward(
        self,
        x: Float[Tensor, "rows query d_model"],
        mask: Bool[Tensor, "..."] | None = None,
        memory: Float[Tensor, "batch key d_model"] | Sequence[KeyValues] | None = None,
        memory_mask: Bool[Tensor, "..."] | None = None,
        caches: Sequence[KeyValueCache] | None = None,
        taps: Scope | None = None,
    ) -> Float[Tensor, "rows query d_model"]:
        """Pass the residual stream through the blocks.

        Args:
            x: the embedded tokens.
            mask: True where a token may attend to a token.
            memory: the encoder's output, or its keys and values block by block.
            memory_mask: True where a token may attend to the memory.
            caches: earlier tokens' keys and values, block by block.
            taps: observer.
        """
        for i, block in enumerate(self.blocks):
            block_memory = memory if memory is None or isinstance(memory, Tensor) else memory[i]
            cache = None if caches is None else caches[i]
            x = block(x, mask, block_memory, memory_mask, cache, scope(taps, f"blocks.{i}"))
        return x if self.norm is None else self.norm(x, scope(taps, "norm"))

    def keys_values(self, memory: Float[Tensor, "batch key d_model"]) -> list[KeyValues]:
        """Project a memory to each block's cross-attention keys and values, once for all steps."""
        return [block.cross.keys_values(memory) for block in self.blocks if block.cross is not None]
