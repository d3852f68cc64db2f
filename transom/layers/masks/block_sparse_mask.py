"""Block-sparse masks: the visible tiles of a mask, built where skipping the other tiles is faster than a dense mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transom.layers.dispatch import SHAPE_TYPES, operation
from transom.layers.masks.mask_rules import DeferredMask, MaskRule, TokenPositions
from transom.layers.position_encoding import PositionEncoding

MIN_QUERIES = 1024
"""Minimum number of queries for a block-sparse mask; with fewer, finding the visible tiles takes longer than dense attention."""

MAX_DENSITY = 0.4
"""Largest fraction of query-key pairs in visible tiles for which a block-sparse mask is used, because a gathered pair takes 2.2 times as
long as a pair in a dense kernel. In a plain causal mask the fraction is 0.5."""

MULTI_PART_COST = 1.5
"""Time per query-key pair if a mask is computed in several parts, relative to a mask of one part."""


@dataclass(frozen=True)
class BlockSparseMask:
    """Block-sparse mask of long sequences: the visible tiles, in the layout of the kernel that computes attention over them.

    Attributes:
        parts: disjoint parts of the mask in the kernel's own layout; ``part.pairs`` is the number of query-key pairs computed for a part.
        rule: mask rule.
        queries: positions and segments of the queries.
        keys: positions and segments of the keys.
        position: position encoding whose bias is added to the scores; None for no bias.
    """

    parts: Sequence[Any]
    rule: MaskRule
    queries: TokenPositions
    keys: TokenPositions
    position: PositionEncoding | None = None

    @property
    def pairs(self) -> int:
        """Number of query-key pairs computed per head."""
        return sum(part.pairs for part in self.parts)

    def dense(self) -> tuple[Bool[Tensor, "#batch 1 query key"], Float[Tensor, "#batch n_heads query key"] | None]:
        """Return mask and bias as dense matrices."""
        positions = self.queries.positions, self.keys.positions
        bias = None if self.position is None else self.position.bias(*positions, *self.position.bias_parameters)
        return self.rule.dense(self.queries, self.keys), bias


@operation("block_sparse_mask")
def plan_block_sparse_mask(
    rule: MaskRule, queries: TokenPositions, keys: TokenPositions, position: PositionEncoding | None
) -> BlockSparseMask | None:
    """Find the visible tiles of a mask, in the layout of a kernel. This reference returns None: without a kernel the mask is dense."""
    return None


def build_block_sparse_mask(
    rule: MaskRule, queries: TokenPositions, keys: TokenPositions, position: PositionEncoding | None = None, n_rows: int = 1
) -> BlockSparseMask | None:
    """Build the block-sparse form of a mask; return None if dense attention is faster.

    Args:
        rule: mask rule; with a ``DeferredMask`` the result has no parts yet.
        queries: positions and segments of the queries.
        keys: positions and segments of the keys.
        position: position encoding whose bias is added to the scores.
        n_rows: batch size, if ``queries`` and ``keys`` have a single row that all rows of the batch share; else 1.
    """
    if isinstance(rule, DeferredMask):
        return BlockSparseMask((), rule.rule, queries, keys, position)
    if queries.segments.shape[1] < MIN_QUERIES or torch.compiler.is_compiling() or SHAPE_TYPES.get():
        return None  # tensors without values show no tiles
    if n_rows > 1:
        queries, keys = (tokens.map(lambda x: x.expand(n_rows, -1)) for tokens in (queries, keys))
    if (planned := plan_block_sparse_mask(rule, queries, keys, position)) is None:
        return None
    n_all_pairs = queries.segments.numel() * keys.segments.shape[1]
    cost = planned.pairs * (MULTI_PART_COST if len(planned.parts) > 1 else 1)
    return planned if 0 < cost <= MAX_DENSITY * n_all_pairs else None
