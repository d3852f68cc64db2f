"""Attention masks as an algebra of rules: who may attend to whom, of any two tokens, joined by and, or and not.

A rule is asked in three ways: for any two places (``allows``: the whole mask, a row of it, or FlexAttention's mask_mod), for all of it as
a boolean matrix (``matrix``), and for tiles of it (``judge``): whether a tile of queries may see some or all of a tile of keys, from the
bounds of what stands in them and without the matrix. A verdict may err only towards work: some where there is none, not all where all are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from transom.config import patterns
from transom.config.brick import Brick
from transom.config.bricks import MultiHead
from transom.config.components import build, implements
from transom.config.patterns import patterns_of

TILE = 64
"""Tokens of a tile: enough for a fast product, few enough that a window's edge costs little."""

FAR = 2**40
"""A distance that no two tokens have."""

MOST_BLOCKS = 4
"""Random blocks that a tile may reach into to be judged exactly."""


class Places(NamedTuple):
    """Where tokens stand.

    Attributes:
        positions: place in its own sequence, from 0.
        segments: number of its sequence in the row; 0 is padding.
        prefix: True where it is in its sequence's prefix; None where there is none.
    """

    positions: Int[Tensor, "..."]
    segments: Int[Tensor, "..."]
    prefix: Bool[Tensor, "..."] | None = None

    @classmethod
    def of_text(cls, length: int, device: torch.device | None = None) -> "Places":
        """Give the places of one text, without a prefix."""
        positions = torch.arange(length, device=device)[None]
        return cls(positions, torch.ones_like(positions))

    def each(self, change: Callable[[Tensor], Tensor]) -> "Places":
        """Change all in the same way."""
        return Places(change(self.positions), change(self.segments), None if self.prefix is None else change(self.prefix))


class Verdict(NamedTuple):
    """Whether a tile of queries may see some key of a tile, and whether each of its queries may see each of the keys."""

    some: Bool[Tensor, "#batch #query_tiles #key_tiles"]
    every: Bool[Tensor, "#batch #query_tiles #key_tiles"]


class Bounds(NamedTuple):
    """The least and the greatest of a number over the tokens of each tile."""

    low: Int[Tensor, "..."]
    high: Int[Tensor, "..."]


def _bounds(queries: Tensor, keys: Tensor) -> tuple[Bounds, Bounds]:
    """Bound a number over tiles of queries and of keys, side by side: (batch, query_tiles, 1) and (batch, 1, key_tiles)."""
    (a, b), (c, d) = queries.aminmax(dim=-1), keys.aminmax(dim=-1)
    return Bounds(a[:, :, None], b[:, :, None]), Bounds(c[:, None], d[:, None])


@dataclass(frozen=True)
class Rule:
    """Who may attend to whom."""

    grouped: ClassVar[bool] = False
    """Whether tokens that see each other lie in groups (``group``) and not side by side."""

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Tell whether each query may attend to each key; the two broadcast against each other."""
        raise AssertionError("each rule has its own")

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Judge tiles of queries and keys, (batch, tiles, tile) each."""
        raise AssertionError("each rule has its own")

    def group(self, places: Places) -> Int[Tensor, "..."]:
        """Number the group of each token."""
        raise AssertionError("only what is grouped has groups")

    def matrix(self, queries: Places, keys: Places) -> Bool[Tensor, "#batch 1 query key"]:
        """Write the mask out."""
        return self.allows(queries.each(lambda x: x[:, :, None]), keys.each(lambda x: x[:, None]))[:, None]

    def __and__(self, other: "Rule") -> "Rule":
        """Allow what both allow."""
        return other if isinstance(self, Everywhere) else self if isinstance(other, Everywhere) else And(self, other)

    def __or__(self, other: "Rule") -> "Rule":
        """Allow what either allows."""
        return Or(self, other)

    def __invert__(self) -> "Rule":
        """Allow what this does not."""
        return Not(self)


@dataclass(frozen=True)
class And(Rule):
    """What both rules allow."""

    left: Rule
    right: Rule

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Ask both."""
        return self.left.allows(query, key) & self.right.allows(query, key)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Ask both; each may allow some pairs of a tile, and both none."""
        a, b = self.left.judge(queries, keys), self.right.judge(queries, keys)
        return Verdict(a.some & b.some, a.every & b.every)


@dataclass(frozen=True)
class Or(Rule):
    """What either rule allows."""

    left: Rule
    right: Rule

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Ask both."""
        return self.left.allows(query, key) | self.right.allows(query, key)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Ask both; only together they may allow all pairs of a tile."""
        a, b = self.left.judge(queries, keys), self.right.judge(queries, keys)
        return Verdict(a.some | b.some, a.every | b.every)


@dataclass(frozen=True)
class Not(Rule):
    """What a rule does not allow."""

    rule: Rule

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Ask it."""
        return ~self.rule.allows(query, key)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Some are left where not all are taken, all where none is."""
        some, every = self.rule.judge(queries, keys)
        return Verdict(~every, ~some)


@dataclass(frozen=True)
class Everywhere(Rule):
    """Everything."""

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Allow it; no position is negative."""
        return (query.positions >= 0) & (key.positions >= 0)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Allow all of every tile."""
        all_of_it = self.allows(queries.each(lambda x: x[:, :, None, 0]), keys.each(lambda x: x[:, None, :, 0]))
        return Verdict(all_of_it, all_of_it)


@dataclass(frozen=True)
class Unwritten(Rule):
    """What ``rule`` allows, for an attention that keeps to it without a matrix."""

    rule: Rule

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Ask it."""
        return self.rule.allows(query, key)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Ask it."""
        return self.rule.judge(queries, keys)


@dataclass(frozen=True)
class Distance(Rule):
    """Keys at some distances before the query: least <= i - j <= most."""

    least: int = -FAR
    most: int = FAR

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Measure the distance."""
        distance = query.positions - key.positions
        return (distance >= self.least) & (distance <= self.most)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Bound the distance."""
        q, k = _bounds(queries.positions, keys.positions)
        shortest, longest = q.low - k.high, q.high - k.low
        return Verdict((longest >= self.least) & (shortest <= self.most), (shortest >= self.least) & (longest <= self.most))


@dataclass(frozen=True)
class Near(Rule):
    """Patches fewer than ``size`` rows and columns away, in an image of ``width`` patches a row (Ramachandran et al. 2019, section 3.1)."""

    size: int
    width: int

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Measure the distance in rows and in columns."""
        rows = query.positions // self.width - key.positions // self.width
        columns = query.positions % self.width - key.positions % self.width
        return (rows.abs() < self.size) & (columns.abs() < self.size)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Bound both distances, one apart from the other."""
        rows = self._judge(queries.positions // self.width, keys.positions // self.width)
        columns = self._judge(queries.positions % self.width, keys.positions % self.width)
        return Verdict(rows.some & columns.some, rows.every & columns.every)

    def _judge(self, queries: Tensor, keys: Tensor) -> Verdict:
        q, k = _bounds(queries, keys)
        shortest, longest = torch.maximum(q.low - k.high, k.low - q.high), torch.maximum(q.high - k.low, k.high - q.low)
        return Verdict(shortest < self.size, longest < self.size)


@dataclass(frozen=True)
class Powers(Rule):
    """Distances below ``local``, and powers of two (Li et al. 2019, section 4.2)."""

    local: int

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Measure the distance; a power of two shares no bit with the number before it."""
        distance = (query.positions - key.positions).abs()
        return (distance < self.local) | ((distance & (distance - 1)) == 0)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Look for a power of two between the shortest and the longest distance."""
        q, k = _bounds(queries.positions, keys.positions)
        below, above = q.low - k.high, q.high - k.low
        shortest, longest = torch.maximum(below, -above).clamp(min=0), torch.maximum(above, -below)
        greatest = torch.bitwise_left_shift(torch.ones_like(longest), (torch.frexp(longest.double()).exponent - 1).clamp(min=0))
        some = (shortest < self.local) | (greatest >= shortest)
        return Verdict(some, longest < self.local)


@dataclass(frozen=True)
class Same(Rule):
    """Tokens of the same group."""

    def number(self, places: Places) -> Int[Tensor, "..."]:
        """Number each token's group."""
        raise AssertionError("each rule has its own")

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Compare the groups."""
        return self.number(query) == self.number(key)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Bound the groups' numbers."""
        q, k = _bounds(self.number(queries), self.number(keys))
        return Verdict((q.low <= k.high) & (k.low <= q.high), (q.low == k.high) & (k.low == q.high))


@dataclass(frozen=True)
class SameSegment(Same):
    """Tokens attend within their own segment. Padding, segment 0, sees only padding, so that no row is empty."""

    def number(self, places: Places) -> Int[Tensor, "..."]:
        """Number the segments."""
        return places.segments


@dataclass(frozen=True)
class SameBlock(Same):
    """Tokens attend within their own block of ``size`` (Child et al. 2019, section 4.3)."""

    size: int

    def number(self, places: Places) -> Int[Tensor, "..."]:
        """Number the blocks."""
        return places.positions // self.size


@dataclass(frozen=True)
class SameResidue(Same):
    """Tokens attend at distances that ``stride`` divides (Child et al. 2019, section 4.2)."""

    grouped = True
    stride: int

    def number(self, places: Places) -> Int[Tensor, "..."]:
        """Number the residues."""
        return places.positions % self.stride

    def group(self, places: Places) -> Int[Tensor, "..."]:
        """Those who see each other lie ``stride`` apart."""
        return self.number(places)


@dataclass(frozen=True)
class LastColumns(Rule):
    """All attend to the last ``columns`` tokens of each block of ``stride`` (Child et al. 2019, section 4.3)."""

    grouped = True
    stride: int
    columns: int

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Look at the key's place in its block."""
        return (query.positions >= 0) & self._chosen(key)

    def _chosen(self, places: Places) -> Tensor:
        return places.positions % self.stride >= self.stride - self.columns

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Look for such keys."""
        _, k = _bounds(queries.positions, self._chosen(keys).long())
        return Verdict(k.high > 0, k.low > 0)

    def group(self, places: Places) -> Int[Tensor, "..."]:
        """The chosen ones apart from the others."""
        return self._chosen(places).long()


@dataclass(frozen=True)
class First(Rule):
    """The first ``size`` tokens attend to all, and all attend to them (Zaheer et al. 2020, section 2)."""

    size: int

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Look at both places."""
        return (query.positions < self.size) | (key.positions < self.size)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Bound both places."""
        q, k = _bounds(queries.positions, keys.positions)
        return Verdict((q.low < self.size) | (k.low < self.size), (q.high < self.size) | (k.high < self.size))


@dataclass(frozen=True)
class InPrefix(Rule):
    """All attend to their own sequence's prefix (Raffel et al. 2020, section 3.2.1); to be joined with ``SAME_SEGMENT``."""

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Look at the key."""
        return (query.positions >= 0) & self._inside(key)

    def _inside(self, places: Places) -> Tensor:
        return places.positions < 0 if places.prefix is None else places.prefix

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Look for keys in it."""
        _, k = _bounds(queries.positions, self._inside(keys).long())
        return Verdict(k.high > 0, k.low > 0)


@dataclass(frozen=True)
class RandomBlocks(Rule):
    """Each block of ``size`` tokens and ``blocks`` of those before it attend to each other, drawn by their numbers and the seed."""

    blocks: int
    size: int
    seed: int

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Look at the blocks."""
        return self._joined(query.positions // self.size, key.positions // self.size)

    def _joined(self, a: Tensor, b: Tensor) -> Tensor:
        drawn = [(self._drawn(a, i) == b) & (b < a) | (self._drawn(b, i) == a) & (a < b) for i in range(self.blocks)]
        return reduce(or_, drawn)

    def _drawn(self, block: Tensor, number: int) -> Tensor:
        """Draw a block before this one."""
        return _mixed(block * 64 + number, self.seed) % block.clamp(min=1)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Look at all the blocks that tiles reach into, if they are few; a tile with several texts in it may reach into many."""
        q, k = _bounds(queries.positions // self.size, keys.positions // self.size)
        reach = min((queries.positions.shape[-1] - 2) // self.size + 2, MOST_BLOCKS)  # blocks that neighbours in one text can lie in
        many = (q.high - q.low >= reach) | (k.high - k.low >= reach)
        pairs = [
            self._joined(torch.minimum(q.low + i, q.high), torch.minimum(k.low + j, k.high)) for i in range(reach) for j in range(reach)
        ]
        return Verdict(reduce(or_, pairs) | many, reduce(and_, pairs) & ~many)


def _mixed(x: Tensor, seed: int) -> Tensor:
    """Mix the bits of whole numbers below 2^32, so that near ones give far ones (a hash of 32 bits: multiply and shift in turn)."""
    for multiplier in (0x7FEB352D, 0x2C1B3C6D, 0x297A2D39):
        x = (x + seed) & 0xFFFFFFFF
        x = ((x ^ (x >> 16)) * multiplier) & 0xFFFFFFFF
    return x ^ (x >> 15)


EVERYWHERE = Everywhere()
SAME_SEGMENT = SameSegment()
CAUSAL = Distance(least=0)
"""Each token sees itself and what came before."""

LOOKING_BACK = SAME_SEGMENT & CAUSAL
"""What decoders let a token see: itself and what came before it in its own sequence."""

BOTH_WAYS_IN_PREFIX = SAME_SEGMENT & (CAUSAL | InPrefix())
"""What a prefix-LM lets a token see: beside these, all of its sequence's prefix."""

implements(patterns.Full)(lambda p, width: EVERYWHERE)
implements(patterns.Window)(lambda p, width: Distance(1 - p.size, p.size - 1))
implements(patterns.Window2d)(lambda p, width: Near(p.size, width))
implements(patterns.Strided)(lambda p, width: SameResidue(p.stride))
implements(patterns.Local)(lambda p, width: SameBlock(p.size))
implements(patterns.Summary)(lambda p, width: LastColumns(p.stride, p.columns))
implements(patterns.Logarithmic)(lambda p, width: Powers(p.local))
implements(patterns.Global)(lambda p, width: First(p.size))
implements(patterns.Random)(lambda p, width: RandomBlocks(p.blocks, p.size, p.seed))
implements(patterns.Prefix)(lambda p, width: InPrefix())


@implements(patterns.Joined)
def join(pattern: patterns.Joined, width: int) -> Rule:
    """Build the rule of patterns put together."""
    parts = [rule_of(part, width) for part in pattern.of]
    return reduce(and_, parts) if pattern.kind == "all" else reduce(or_, parts) if pattern.kind == "any" else ~reduce(or_, parts)


def rule_of(pattern: Brick, width: int = 0) -> Rule:
    """Build the rule that a pattern is.

    Args:
        pattern: the brick.
        width: patches a row, of images.
    """
    return build(pattern, width)


def build_rules(attention: MultiHead, family: Rule) -> list[Rule]:
    """Build the rules that the blocks of a stack have in turn: what the family allows and the pattern too."""
    if attention.approximation.kind != "none":
        return [Unwritten(family)]
    return [family & rule_of(part) for part in patterns_of(attention.pattern)]
