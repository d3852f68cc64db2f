"""Context objects: masks, biases, rotary tables, caches and the observer of a forward pass.

A model builds its contexts once per pass; layers only read them, apart from caches. Tensors that a layer transforms (residual stream,
encoder output) are separate arguments, so that a tensor-parallel plan can shard them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.layers.cache import BlockCache
from transom.layers.masks.block_sparse_mask import BlockSparseMask
from transom.layers.observe import ActivationObserver
from transom.layers.position_encoding import RotaryCosSin


class SegmentMask(NamedTuple):
    """Mask given by segment ids instead of a matrix: a query attends to keys of its own segment. Padding attends to nothing.

    Attributes:
        queries: segment id per query; 0 is padding.
        keys: segment id per key; 0 is padding.
        causal: whether a token attends only to itself and earlier tokens; queries and keys must then be the same tokens.
    """

    queries: Int[Tensor, "#batch query"]
    keys: Int[Tensor, "#batch key"]
    causal: bool


@dataclass(frozen=True, eq=False)
class LayerContext:
    """Context that every layer can read.

    Attributes:
        token_mask: True at tokens, False at padding; None without padding.
        observer: records and edits activations; None in normal use.
    """

    token_mask: Bool[Tensor, "#batch query"] | None = None
    observer: ActivationObserver | None = None


@dataclass(frozen=True, eq=False)
class AttentionContext(LayerContext):
    """Context of one attention layer.

    Attributes:
        mask: True where a query may attend to a key, broadcastable to (batch, n_heads, query, key); None for no mask.
        bias: added to the attention scores, broadcastable to (batch, n_heads, query, key); None for no bias.
        rotary: rotary cosines and sines at the positions of this pass's tokens; None without RoPE.
        block_mask: block-sparse form of mask and bias; if given, ``mask`` and ``bias`` are None.
        key_indices: indices of the keys that are gathered before attention, in place of a mask; None to attend to all keys.
        segment_mask: mask as segment ids, for linear and low-rank attention, which build no matrix; None for no mask.
        cache: keys and values of earlier tokens, updated in place: the only field that a layer writes to.
    """

    mask: Bool[Tensor, "..."] | None = None
    bias: Float[Tensor, "..."] | None = None
    rotary: RotaryCosSin | None = None
    block_mask: BlockSparseMask | None = None
    key_indices: Int[Tensor, "key"] | None = None
    segment_mask: SegmentMask | None = None
    cache: BlockCache | None = None


class Part(NamedTuple):
    """Part of the query-key pairs of a pass, for inspection: a mask of all pairs of long texts would be large.

    Attributes:
        queries: indices of the queries.
        keys: indices of the keys.
    """

    queries: slice | list[int] = slice(None)
    keys: slice | list[int] = slice(None)


ALL_PAIRS = Part()
"""All queries and keys."""

UNMASKED = AttentionContext()
"""Context without mask and positions: every query attends to every key."""


@dataclass(frozen=True, eq=False)
class BlockContext(LayerContext):
    """Context of one block.

    Attributes:
        attention: context of self-attention.
        cross: context of cross-attention.
    """

    attention: AttentionContext = UNMASKED
    cross: AttentionContext = UNMASKED


@dataclass(frozen=True, eq=False)
class StackContext(LayerContext):
    """Context of a stack of blocks, of its embedding and of its output layers in one pass.

    Attributes:
        attention_contexts: contexts of self-attention; block i uses ``attention_contexts[i % len(attention_contexts)]``.
        cross: context of cross-attention, the same in every block.
        caches: self-attention cache per block; None without caching.
    """

    attention_contexts: Sequence[AttentionContext] = (UNMASKED,)
    cross: AttentionContext = UNMASKED
    caches: Sequence[BlockCache] | None = None

    def for_block(self, index: int) -> BlockContext:
        """Return the context of block ``index``, with the cache and the observer of this block."""
        observer = None if self.observer is None else self.observer.for_block(index)
        attention = self.attention_contexts[index % len(self.attention_contexts)]
        if observer is None and self.caches is None:
            return BlockContext(self.token_mask, None, attention, self.cross)
        attention = replace(attention, observer=observer, cache=None if self.caches is None else self.caches[index])
        return BlockContext(self.token_mask, observer, attention, replace(self.cross, observer=observer))
