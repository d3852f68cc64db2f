"""Contexts: what layers need of a pass beside the tensors they transform. A model builds them once per pass; layers only read them.

What a layer transforms (the residual stream, the memory) is an argument of its own, so that a parallel plan can shard it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.layers.cache import BlockCache
from transom.layers.masks.visible_tiles import VisibleTiles
from transom.layers.observe import ActivationObserver, ActivationRecorder
from transom.layers.position import Rotation


class SegmentMask(NamedTuple):
    """A mask without a matrix: tokens see those of their own sequence, all of them or those up to themselves. Padding sees nothing.

    Attributes:
        queries: number of each query's sequence in its row; 0 is padding.
        keys: the same of each key.
        causal: whether tokens, which are both, see only themselves and those before them.
    """

    queries: Int[Tensor, "#batch query"]
    keys: Int[Tensor, "#batch key"]
    causal: bool


@dataclass(frozen=True, eq=False)
class LayerContext:
    """What any layer may need.

    Attributes:
        token_mask: True at tokens, False at padding; None where all are tokens.
        observer: reads and edits sites; None for none.
    """

    token_mask: Bool[Tensor, "#batch query"] | None = None
    observer: ActivationObserver | None = None


@dataclass(frozen=True, eq=False)
class AttentionContext(LayerContext):
    """What one attention needs.

    Attributes:
        mask: True where a query may attend to a key, broadcastable to (batch, n_heads, query, key); None for everywhere.
        bias: added to the scores.
        rotation: rotary tables of the queries and of those keys that are new in this pass.
        tiles: mask and bias by visible tiles, in place of both.
        visible_keys: numbers of the only keys that any query sees; None for all.
        segments: in place of a mask, for attention that needs no matrix; None for everywhere.
        cache: keys and values of earlier tokens, to which the new ones are appended; the only thing that a layer writes to.
    """

    mask: Bool[Tensor, "..."] | None = None
    bias: Float[Tensor, "..."] | None = None
    rotation: Rotation | None = None
    tiles: VisibleTiles | None = None
    visible_keys: Int[Tensor, "key"] | None = None
    segments: SegmentMask | None = None
    cache: BlockCache | None = None


UNMASKED = AttentionContext()
"""All queries see all keys, without order."""


@dataclass(frozen=True, eq=False)
class BlockContext(LayerContext):
    """What one block needs.

    Attributes:
        attention: for self-attention.
        cross: for attention to the memory.
    """

    attention: AttentionContext = UNMASKED
    cross: AttentionContext = UNMASKED


@dataclass(frozen=True, eq=False)
class StackContext(LayerContext):
    """What a stack, and what precedes and follows it, needs in one pass.

    Attributes:
        attentions: for self-attention in the first, second, ... block, and again from the first.
        cross: for attention to the memory, in every block.
        caches: of self-attention, block by block; None where nothing is cached.
    """

    attentions: Sequence[AttentionContext] = (UNMASKED,)
    cross: AttentionContext = UNMASKED
    caches: Sequence[BlockCache] | None = None

    def block(self, index: int) -> BlockContext:
        """Return the context of a block."""
        observer = None if self.observer is None else self.observer.block(index)
        attention = self.attentions[index % len(self.attentions)]
        if observer is None and self.caches is None:
            return BlockContext(self.token_mask, None, attention, self.cross)
        attention = replace(attention, observer=observer, cache=None if self.caches is None else self.caches[index])
        return BlockContext(self.token_mask, observer, attention, replace(self.cross, observer=observer))


def open_observer(recorder: ActivationRecorder | None, stack: str) -> ActivationObserver | None:
    """Begin to observe a pass through a stack, if there is a recorder."""
    return None if recorder is None else recorder.open(stack)
