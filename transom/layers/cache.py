"""The incremental decoder's memory: keys and values of what was already read, so that each token is computed once."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class KeyValues(NamedTuple):
    """Keys and values in heads, ready for attention."""

    k: Float[Tensor, "batch kv_heads key d_head"]
    v: Float[Tensor, "batch kv_heads key d_value"]


class KeyValueCache:
    """One layer's self-attention keys and values, preallocated, with three verbs: append, read, reorder."""

    def __init__(self, n_rows: int, kv_heads: int, max_length: int, d_head: int, d_value: int, like: Tensor) -> None:
        """Reserve room for ``max_length`` tokens in ``n_rows`` rows, in the type and on the device of ``like``."""
        self._k = like.new_empty(n_rows, kv_heads, max_length, d_head)
        self._v = like.new_empty(n_rows, kv_heads, max_length, d_value)
        self.length = 0

    def append(self, new: KeyValues) -> KeyValues:
        """Store the next tokens' keys and values behind the others and return all."""
        end = self.length + new.k.shape[2]
        assert end <= self._k.shape[2], f"the cache holds {self._k.shape[2]} tokens, asked for {end}"
        self._k[:, :, self.length : end] = new.k
        self._v[:, :, self.length : end] = new.v
        self.length = end
        return self.read()

    def read(self) -> KeyValues:
        """Return everything stored, as views."""
        return KeyValues(self._k[:, :, : self.length], self._v[:, :, : self.length])

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Let row i continue from old row ``rows[i]``; fewer rows than before drop the rest."""
        for buffer in (self._k, self._v):
            buffer[: len(rows), :, : self.length] = buffer[rows, :, : self.length]
        self._k, self._v = self._k[: len(rows)], self._v[: len(rows)]


class RoutedCache(KeyValueCache):
    """That of a block which only chosen tokens pass: a place for every token, of which those of the others are not to be seen.

    Attributes:
        chosen: True at the places of chosen tokens.
    """

    def __init__(self, n_rows: int, kv_heads: int, max_length: int, d_head: int, d_value: int, like: Tensor) -> None:
        """Reserve room; places that stay empty hold zeros, so that a weight of 0 makes nothing of them."""
        super().__init__(n_rows, kv_heads, max_length, d_head, d_value, like)
        self._k.zero_()
        self._v.zero_()
        self.chosen = like.new_zeros(n_rows, max_length, dtype=torch.bool)
        self._places: Tensor | None = None

    def expect(self, chosen: Bool[Tensor, "rows new"], places: Int[Tensor, "rows chosen"]) -> Bool[Tensor, "rows key"]:
        """Make room for the next tokens, of which those at ``places`` are to be appended; tell for all tokens whether they were chosen."""
        begin, self.length = self.length, self.length + chosen.shape[1]
        assert self.length <= self._k.shape[2], f"the cache holds {self._k.shape[2]} tokens, asked for {self.length}"
        self.chosen[:, begin : self.length] = chosen
        self._places = begin + places
        return self.chosen[:, : self.length]

    def append(self, new: KeyValues) -> KeyValues:
        """Store keys and values at the expected places and return those of all places."""
        assert self._places is not None, "places are told before"
        for buffer, x in zip((self._k, self._v), new, strict=True):
            buffer.scatter_(2, self._places[:, None, :, None].expand_as(x), x)
        return self.read()

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Let row i continue from old row ``rows[i]``; fewer rows than before drop the rest."""
        super().reorder(rows)
        self.chosen = self.chosen[rows]


class Sums(NamedTuple):
    """What linear attention keeps of keys and values: sum_j phi(k_j) [v_j, 1]^T a head, of one size however many there are."""

    sums: Float[Tensor, "batch kv_heads features width"]


class SumsCache:
    """One layer's self-attention sums, with three verbs: write, read, reorder."""

    def __init__(self, n_rows: int, kv_heads: int, features: int, d_value: int, like: Tensor) -> None:
        """Begin with sums of nothing in ``n_rows`` rows, in float32 at least and on the device of ``like``."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        self._sums = like.new_zeros(n_rows, kv_heads, features, d_value + 1, dtype=dtype)
        self.length = 0

    def write(self, sums: Sums, n_new: int) -> None:
        """Put the sums with ``n_new`` more tokens in place of the old ones."""
        self._sums, self.length = sums.sums, self.length + n_new

    def read(self) -> Sums:
        """Return the sums over all tokens so far."""
        return Sums(self._sums)

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Let row i continue from old row ``rows[i]``; fewer rows than before drop the rest."""
        self._sums = self._sums[rows]


BlockCache = KeyValueCache | SumsCache
"""What one layer's self-attention remembers."""

ProjectedMemory = KeyValues | Sums
"""What one layer's cross-attention keeps of the source."""


class DecoderCache:
    """What a decoder remembers between steps.

    Attributes:
        blocks: one self-attention cache a block; rows are source-major, ``n_beams`` a source.
        memories: what each block's cross-attention remembers, kept once a source and never copied a beam; none where there is no source.
        memory_mask: True where a memory key is not padding.
        n_prefix: tokens that were read first and in one piece, as the prefix of what follows.
    """

    def __init__(self, blocks: Sequence[BlockCache], memories: Sequence[ProjectedMemory] = (), memory_mask: Tensor | None = None) -> None:
        """Gather the blocks' caches."""
        self.blocks = blocks
        self.memories = list(memories)
        self.memory_mask = memory_mask
        self.n_prefix = 0

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return self.blocks[0].length

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Let row i continue from old row ``rows[i]``. A row's source must stay the same."""
        for block in self.blocks:
            block.reorder(rows)

    def keep_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Go on with these sources only; their rows must be chosen by ``reorder`` in the same order."""
        self.memories = [type(memory)(*(x[sources] for x in memory)) for memory in self.memories]
        if self.memory_mask is not None:
            self.memory_mask = self.memory_mask[sources]
