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
        """Append the keys and values of the new tokens; return the keys and values of all tokens so far."""
        end = self.length + new.k.shape[2]
        assert end <= self._k.shape[2], f"expected at most {self._k.shape[2]} tokens in the cache, found {end}"
        self._k[:, :, self.length : end] = new.k
        self._v[:, :, self.length : end] = new.v
        self.length = end
        return self.read()

    def read(self) -> KeyValues:
        """Return views of the keys and values of all tokens so far."""
        return KeyValues(self._k[:, :, : self.length], self._v[:, :, : self.length])

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Move old row ``rows[i]`` to row i, for every i; afterwards the cache has ``len(rows)`` rows."""
        for buffer in (self._k, self._v):
            buffer[: len(rows), :, : self.length] = buffer[rows, :, : self.length]
        self._k, self._v = self._k[: len(rows)], self._v[: len(rows)]


class RoutedKVCache(KVCache):
    """KV cache of a mixture-of-depths block: one slot per token; slots of tokens that skipped the block are masked.

    Attributes:
        selected: True at tokens that the router selected, (rows, max_length).
    """

    def __init__(self, n_rows: int, kv_heads: int, max_length: int, d_head: int, d_value: int, like: Tensor) -> None:
        """Allocate zeros: a masked slot has attention weight 0, and 0 times an uninitialized value could be NaN."""
        super().__init__(n_rows, kv_heads, max_length, d_head, d_value, like)
        self._k.zero_()
        self._v.zero_()
        self.selected = like.new_zeros(n_rows, max_length, dtype=torch.bool)
        self._positions: Tensor | None = None

    def reserve(self, selected: Bool[Tensor, "rows new"], positions: Int[Tensor, "rows selected"]) -> Bool[Tensor, "rows key"]:
        """Reserve slots for the new tokens; ``update`` then writes the slots of the selected tokens.

        Args:
            selected: True at new tokens that the router selected.
            positions: indices of the selected tokens among the new ones, with padding, as ``gather_selected`` returns them.

        Returns:
            True at the selected tokens among all tokens so far.
        """
        begin, self.length = self.length, self.length + selected.shape[1]
        assert self.length <= self._k.shape[2], f"expected at most {self._k.shape[2]} tokens in the cache, found {self.length}"
        self.selected[:, begin : self.length] = selected
        self._positions = begin + positions
        return self.selected[:, : self.length]

    def update(self, new: KeyValues) -> KeyValues:
        """Write the keys and values of the selected tokens to their reserved slots; return the keys and values of all slots so far."""
        assert self._positions is not None, "slots must be reserved first"
        for buffer, x in zip((self._k, self._v), new, strict=True):
            buffer.scatter_(2, self._positions[:, None, :, None].expand_as(x), x)
        return self.read()

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Move old row ``rows[i]`` to row i, for every i; afterwards the cache has ``len(rows)`` rows."""
        super().reorder(rows)
        self.selected = self.selected[rows]


class LinearAttentionState(NamedTuple):
    """State of linear attention per head: the sum over tokens j of phi(k_j) [v_j, 1]^T. Its size is independent of the number of tokens."""

    sums: Float[Tensor, "batch kv_heads features width"]


class LinearAttentionCache:
    """State of one linear self-attention layer during decoding."""

    def __init__(self, n_rows: int, kv_heads: int, features: int, d_value: int, like: Tensor) -> None:
        """Allocate a zero state for ``n_rows`` rows, in float32 or wider, on the device of ``like``."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        self._sums = like.new_zeros(n_rows, kv_heads, features, d_value + 1, dtype=dtype)
        self.length = 0

    def write(self, sums: LinearAttentionState, n_new: int) -> None:
        """Replace the state by ``sums``, which include ``n_new`` more tokens."""
        self._sums, self.length = sums.sums, self.length + n_new

    def read(self) -> LinearAttentionState:
        """Return the state over all tokens so far."""
        return LinearAttentionState(self._sums)

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Move old row ``rows[i]`` to row i, for every i; afterwards the cache has ``len(rows)`` rows."""
        self._sums = self._sums[rows]


BlockCache = KVCache | LinearAttentionCache
"""Cache of one self-attention layer."""

ProjectedMemory = KeyValues | LinearAttentionState
"""Encoder output projected for the cross-attention of one layer: keys and values, or the state of linear attention."""


class DecoderCache:
    """Caches of all blocks of a decoder between decoding steps.

    Attributes:
        blocks: one self-attention cache per block; row ``source * n_beams + beam`` belongs to this source and beam.
        memories: projected encoder output per block, one row per source, which all beams of the source share; empty without an encoder.
        memory_mask: True where a key of the encoder output is not padding; None without an encoder.
        n_prefix: number of tokens that were prefilled in one pass; in a prefix-LM these tokens are the prefix.
        text_length: longest length that the texts may reach, by which some rotary scalings choose their frequencies; None for the
            context window.
    """

    def __init__(self, blocks: Sequence[BlockCache], memories: Sequence[ProjectedMemory] = (), memory_mask: Tensor | None = None) -> None:
        self.blocks = blocks
        self.memories = list(memories)
        self.memory_mask = memory_mask
        self.n_prefix = 0
        self.text_length: int | None = None

    @property
    def length(self) -> int:
        """Number of cached tokens per row."""
        return self.blocks[0].length

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Move old row ``rows[i]`` to row i in the self-attention caches. ``select_sources`` selects the rows of the encoder output."""
        for block in self.blocks:
            block.reorder(rows)

    def select_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Keep the projected encoder output of these sources only. Select their other cache rows with ``reorder``, in the same order."""
        self.memories = [type(memory)(*(x[sources] for x in memory)) for memory in self.memories]
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[sources]
