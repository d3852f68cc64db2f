"""Block-sparse masks: the visible tiles of a mask, built where skipping the other tiles is faster than a dense mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from transom.layers.dispatch import operation
from transom.layers.masks.rule import Places, Rule
from transom.layers.position import Position

LONG = 1024
"""Fewest queries for which a block-sparse mask is built; for fewer, dense attention takes less time than planning."""

MOST = 0.4
"""Largest fraction of visible query-key pairs for which a block-sparse mask is used: gathering takes 2.2 times a dense kernel's time per
pair. A plain causal mask has 0.5."""

JOINED = 1.5
"""Cost per pair of a mask of several parts, relative to a mask of one part."""


@dataclass(frozen=True)
class VisibleTiles:
    """Block-sparse mask of long sequences, planned by a kernel.

    Attributes:
        parts: disjoint parts of the mask in the kernel's own layout; ``part.pairs`` is the number of pairs that it computes.
        rule: mask rule.
        queries: positions and segments of the queries.
        keys: positions and segments of the keys.
        position: position encoding whose bias is added to the scores; None for no bias.
    """

    parts: Sequence[Any]
    rule: Rule
    queries: Places
    keys: Places
    position: Position | None = None

    @property
    def pairs(self) -> int:
        """Number of query-key pairs computed per head."""
        return sum(part.pairs for part in self.parts)

    def written_out(self) -> tuple[Bool[Tensor, "#batch 1 query key"], Float[Tensor, "#batch n_heads query key"] | None]:
        """Return mask and bias as dense matrices."""
        positions = self.queries.positions, self.keys.positions
        bias = None if self.position is None else self.position.bias(*positions, *self.position.learned)
        return self.rule.matrix(self.queries, self.keys), bias


@operation("visible_tiles")
def plan_visible(rule: Rule, queries: Places, keys: Places, position: Position | None) -> VisibleTiles | None:
    """Plan attention over the visible tiles of a mask. This reference returns None: without a kernel the mask is dense."""
    return None


def visible_tiles(rule: Rule, queries: Places, keys: Places, position: Position | None = None, n_rows: int = 1) -> VisibleTiles | None:
    """Build the block-sparse form of a mask; return None where dense attention is faster.

    Args:
        rule: mask rule.
        queries: positions and segments of the queries.
        keys: positions and segments of the keys.
        position: position encoding whose bias is added to the scores.
        n_rows: batch size where ``queries`` and ``keys`` have a single row for all.
    """
    if queries.segments.shape[1] < LONG or torch.compiler.is_compiling():
        return None
    if n_rows > 1:
        queries, keys = (places.each(lambda x: x.expand(n_rows, -1)) for places in (queries, keys))
    if (found := plan_visible(rule, queries, keys, position)) is None:
        return None
    whole = queries.segments.numel() * keys.segments.shape[1]
    cost = found.pairs * (JOINED if len(found.parts) > 1 else 1)
    return found if 0 < cost <= MOST * whole else None
