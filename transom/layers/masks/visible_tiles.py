"""The tiles of a mask that are visible, where to leave out the others pays: the place at which block-sparse attention enters."""

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
"""From this many queries on, tiles are looked for that need not be computed: below, all of them take less time than a choice."""

MOST = 0.4
"""Most tiles of a mask, as a share of all, with which to leave out the others pays: what is gathered takes 2.2 times a dense kernel's time
a pair. A causal mask alone has half of all."""

JOINED = 1.5
"""What a pair costs where parts of a mask are joined, beside one of a mask of one part."""


@dataclass(frozen=True)
class VisibleTiles:
    """A mask of long sequences by the tiles of it that are visible, planned by a kernel.

    Attributes:
        parts: disjoint parts of the mask, as the kernel lays them out; each counts its pairs.
        rule: the mask.
        queries: where the queries stand.
        keys: where the keys stand.
        position: the brick whose bias is added to the scores; None for no bias.
    """

    parts: Sequence[Any]
    rule: Rule
    queries: Places
    keys: Places
    position: Position | None = None

    @property
    def pairs(self) -> int:
        """Scores that are computed per head."""
        return sum(part.pairs for part in self.parts)

    def written_out(self) -> tuple[Bool[Tensor, "#batch 1 query key"], Float[Tensor, "#batch n_heads query key"] | None]:
        """Return mask and bias as matrices."""
        positions = self.queries.positions, self.keys.positions
        bias = None if self.position is None else self.position.bias(*positions, *self.position.learned)
        return self.rule.matrix(self.queries, self.keys), bias


@operation("visible_tiles")
def plan_visible(rule: Rule, queries: Places, keys: Places, position: Position | None) -> VisibleTiles | None:
    """Plan attention over the visible tiles of a mask; without a kernel there is no such path, and the mask is written out."""
    return None


def visible_tiles(rule: Rule, queries: Places, keys: Places, position: Position | None = None, n_rows: int = 1) -> VisibleTiles | None:
    """Find the visible tiles of a mask, if to leave out the others pays.

    Args:
        rule: the mask.
        queries: where the queries stand.
        keys: where the keys stand.
        position: the brick whose bias is added to the scores there.
        n_rows: sequences that share places of one row.
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
