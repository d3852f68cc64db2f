"""What the queries of a pass may see, and from where: computed once a stack, used by all its blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.layers.dispatch import operation
from transom.layers.masks.rule import BOTH_WAYS_IN_PREFIX, LOOKING_BACK, Places, Rule, Unwritten
from transom.layers.position import Position, Rotation
from transom.layers.values import Values

LONG = 1024
"""From this many queries on, tiles are looked for that need not be computed: below, all of them take less time than a choice."""

MOST = 0.4
"""Most tiles of a mask, as a share of all, with which to leave out the others pays: what is gathered takes 2.2 times a dense kernel's time
a pair. A causal mask alone has half of all."""

JOINED = 1.5
"""What a pair costs where parts of a mask are joined, beside one of a mask of one part."""

RARE = 0.5
"""Most keys of a step, as a share of all, with which to gather them pays."""


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


class Reach(NamedTuple):
    """Who sees whom, without a matrix: tokens those of their own sequence, all of them or those that came before. Padding sees nothing.

    Attributes:
        queries: number of each query's sequence in its row; 0 is padding.
        keys: the same of each key.
        causal: whether tokens, which are both, see themselves and what came before only.
    """

    queries: Int[Tensor, "#batch query"]
    keys: Int[Tensor, "#batch key"]
    causal: bool


class Sight(NamedTuple):
    """What each query may see and how it stands to it.

    Attributes:
        mask: True where a query may attend to a key, broadcastable to (batch, n_heads, query, key); None for everywhere.
        bias: added to the scores.
        rotation: how the queries, and those keys that are new in this pass, are turned.
        real: True at queries that are tokens, False at padding; None where all are tokens.
        tiles: mask and bias by visible tiles, in place of both; on a GPU by visible blocks.
        seen: numbers of the only keys that any query sees; None for all.
        reach: in place of a mask, for attention that needs no matrix; None for everywhere.
        values: what becomes of the values of what is seen; None where they stay as they are.
    """

    mask: Bool[Tensor, "..."] | None = None
    bias: Float[Tensor, "..."] | None = None
    rotation: Rotation | None = None
    real: Bool[Tensor, "#batch query"] | None = None
    tiles: VisibleTiles | None = None
    seen: Int[Tensor, "seen"] | None = None
    reach: Reach | None = None
    values: Values | None = None


EVERYTHING = Sight()
"""All of it, without order."""


def look(
    position: Position, queries: Places, keys: Places, rules: Sequence[Rule], written_out: bool = False, n_rows: int = 1
) -> list[Sight]:
    """Let tokens see those of their own sequence that rules allow, as the position brick has it.

    Args:
        position: the brick.
        queries: where the tokens stand.
        keys: where those stand that they may see.
        rules: of the first, second, ... block, and again from the first.
        written_out: give masks and biases as matrices, however long.
        n_rows: sequences that share places of one row.

    Returns:
        What the blocks see in turn.
    """
    rotation = position.rotation(queries.positions)
    real = queries.segments > 0
    if isinstance(rules[0], Unwritten) and not written_out:
        return [Sight(rotation=rotation, real=real, reach=Reach(queries.segments, keys.segments, rules[0].rule == LOOKING_BACK))]
    found = [None if written_out else visible_tiles(rule, queries, keys, position, n_rows) for rule in rules]
    bias = None if all(found) else position.bias(queries.positions, keys.positions, *position.learned)
    return [
        Sight(rotation=rotation, real=real, tiles=tiles) if tiles else Sight(rule.matrix(queries, keys), bias, rotation, real)
        for rule, tiles in zip(rules, found, strict=True)
    ]


def look_back(
    position: Position,
    rules: Sequence[Rule],
    n_read: int,
    tokens: Int[Tensor, "rows new"],
    n_prefix: int = 0,
    written_out: bool = False,
) -> list[Sight]:
    """Let new tokens of sequences that are read step by step see those before them that rules allow.

    Args:
        position: the brick.
        rules: of the first, second, ... block, and again from the first.
        n_read: tokens that were read before.
        tokens: read now.
        n_prefix: tokens at the start that are the sequences' prefix.
        written_out: give masks and biases as matrices, however long.

    Returns:
        What the blocks see in turn.
    """
    n_rows, n_new = tokens.shape
    positions = torch.arange(n_read + n_new, device=tokens.device)[None]
    every = Places(positions, torch.ones_like(positions), positions < n_prefix)
    new = every.each(lambda x: x[:, n_read:])
    if n_new > 1 or isinstance(rules[0], Unwritten):
        sights = look(position, new, every, rules, written_out, n_rows)
        return [sight._replace(real=None) for sight in sights]  # all are tokens, in every row
    rotation = position.rotation(new.positions)
    return [_last(position, rule, new, every, rotation) for rule in rules]


def _last(position: Position, rule: Rule, new: Places, every: Places, rotation: Rotation | None) -> Sight:
    """Let the last token look back, at the rare keys that it may see or, if they are many, at all."""
    mask, keys, seen = None, every.positions, None
    if rule not in (LOOKING_BACK, BOTH_WAYS_IN_PREFIX):
        mask = rule.matrix(new, every)
        places = mask.flatten().nonzero()[:, 0]
        if 0 < len(places) <= RARE * mask.numel():
            mask, keys, seen = None, keys[:, places], places
    return Sight(mask, position.bias(new.positions, keys, *position.learned), rotation, seen=seen)


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


def of_block(sights: Sequence[Sight], attention: str) -> Sight:
    """Choose what an attention sees, from what the blocks see in turn and its address, as ``decoder.blocks.3.attn``."""
    return sights[int(attention.split(".blocks.")[1].split(".")[0]) % len(sights)]
