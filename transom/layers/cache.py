"""Caches of incremental decoding: the KV cache of self-attention, the state of linear attention, and the projected encoder output."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class KeyValues(NamedTuple):
    """Keys and values, split into heads."""

    k: Float[Tensor, "batch kv_heads key d_head"]
    v: Float[Tensor, "batch kv_heads key d_value"]


class KVCache:
    """Preallocated KV cache of one self-attention layer."""

    def __init__(self, n_rows: int, kv_heads: int, max_length: int, d_head: int, d_value: int, like: Tensor) -> None:
        """Allocate ``max_length`` tokens for each of ``n_rows`` rows, with the dtype and device of ``like``."""
        self._k = like.new_empty(n_rows, kv_heads, max_length, d_head)
        self._v = like.new_empty(n_rows, kv_heads, max_length, d_value)
        self.length = 0

    def update(self, new: KeyValues) -> KeyValues:
        """Update the KV cache: append the keys and values of the new tokens and return those of all tokens so far."""
        end = self.length + new.k.shape[2]
        assert end <= self._k.shape[2], f"expected at most {self._k.shape[2]} tokens in the cache, found {end}"
        self._k[:, :, self.length : end] = new.k
        self._v[:, :, self.length : end] = new.v
        self.length = end
        return self.read()

    def read(self) -> KeyValues:
        """Return views of all keys and values so far."""
        return KeyValues(self._k[:, :, : self.length], self._v[:, :, : self.length])

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Set row i to old row ``rows[i]``; the batch shrinks to ``len(rows)``."""
        for buffer in (self._k, self._v):
            buffer[: len(rows), :, : self.length] = buffer[rows, :, : self.length]
        self._k, self._v = self._k[: len(rows)], self._v[: len(rows)]


class RoutedKVCache(KVCache):
    """KV cache of a mixture-of-depths block: one slot per token; slots of tokens that skipped the block are masked.

    Attributes:
        selected: True at tokens that the router selected, (rows, max_length).
    """

    def __init__(self, n_rows: int, kv_heads: int, max_length: int, d_head: int, d_value: int, like: Tensor) -> None:
        """Allocate zeros: an unused slot has attention weight 0, and 0 times an uninitialized value could be NaN."""
        super().__init__(n_rows, kv_heads, max_length, d_head, d_value, like)
        self._k.zero_()
        self._v.zero_()
        self.selected = like.new_zeros(n_rows, max_length, dtype=torch.bool)
        self._positions: Tensor | None = None

    def reserve(self, selected: Bool[Tensor, "rows new"], positions: Int[Tensor, "rows selected"]) -> Bool[Tensor, "rows key"]:
        """Reserve slots for the new tokens, those at ``positions`` selected; return the selection mask of all tokens so far."""
        begin, self.length = self.length, self.length + selected.shape[1]
        assert self.length <= self._k.shape[2], f"expected at most {self._k.shape[2]} tokens in the cache, found {self.length}"
        self.selected[:, begin : self.length] = selected
        self._positions = begin + positions
        return self.selected[:, : self.length]

    def update(self, new: KeyValues) -> KeyValues:
        """Write the keys and values to the reserved slots and return those of all slots."""
        assert self._positions is not None, "slots must be reserved first"
        for buffer, x in zip((self._k, self._v), new, strict=True):
            buffer.scatter_(2, self._positions[:, None, :, None].expand_as(x), x)
        return self.read()

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Set row i to old row ``rows[i]``; the batch shrinks to ``len(rows)``."""
        super().reorder(rows)
        self.selected = self.selected[rows]


class LinearAttentionState(NamedTuple):
    """State of linear attention: sum_j phi(k_j) [v_j, 1]^T per head. Its size does not depend on the number of tokens."""

    sums: Float[Tensor, "batch kv_heads features width"]


class LinearAttentionCache:
    """State of one linear self-attention layer during decoding."""

    def __init__(self, n_rows: int, kv_heads: int, features: int, d_value: int, like: Tensor) -> None:
        """Allocate zero sums for ``n_rows`` rows, in float32 or wider, on the device of ``like``."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        self._sums = like.new_zeros(n_rows, kv_heads, features, d_value + 1, dtype=dtype)
        self.length = 0

    def write(self, sums: LinearAttentionState, n_new: int) -> None:
        """Replace the sums by those that include ``n_new`` more tokens."""
        self._sums, self.length = sums.sums, self.length + n_new

    def read(self) -> LinearAttentionState:
        """Return the sums over all tokens so far."""
        return LinearAttentionState(self._sums)

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Set row i to old row ``rows[i]``; the batch shrinks to ``len(rows)``."""
        self._sums = self._sums[rows]


BlockCache = KVCache | LinearAttentionCache
"""Cache of one self-attention layer."""

ProjectedMemory = KeyValues | LinearAttentionState
"""Encoder output projected for the cross-attention of one layer."""


class DecoderCache:
    """Caches of all blocks of a decoder between decoding steps.

    Attributes:
        blocks: one self-attention cache per block; rows are source-major, ``n_beams`` rows per source.
        memories: projected encoder output per block, one row per source, shared by its beams; empty without an encoder.
        memory_mask: True where a key of the encoder output is not padding.
        n_prefix: number of tokens prefilled in one pass; a prefix-LM attends to them bidirectionally.
    """

    def __init__(self, blocks: Sequence[BlockCache], memories: Sequence[ProjectedMemory] = (), memory_mask: Tensor | None = None) -> None:
        self.blocks = blocks
        self.memories = list(memories)
        self.memory_mask = memory_mask
        self.n_prefix = 0

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        return self.blocks[0].length

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Set row i to old row ``rows[i]``, which must belong to the same source."""
        for block in self.blocks:
            block.reorder(rows)

    def select_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Keep only these sources; select their rows with ``reorder``, in the same order."""
        self.memories = [type(memory)(*(x[sources] for x in memory)) for memory in self.memories]
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[sources]
