"""Mask rules: which query may attend to which key, as objects that combine with ``&``, ``|`` and ``~``.

A rule is evaluated in three ways:

- ``allows``: for given queries and keys, which broadcast, as FlexAttention's mask_mod;
- ``matrix``: for all of them, as a dense boolean mask;
- ``judge``: per pair of tiles, whether some or all pairs are visible, from bounds on the positions and without the matrix. The
  status may be conservative (visible instead of empty, partial instead of full), never the reverse.
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
"""Tokens per tile: large enough for a fast matrix product, small enough that partly visible tiles waste little."""

FAR = 2**40
"""Larger than any distance between two tokens."""

MOST_BLOCKS = 4
"""Random blocks that a tile may span and still be classified exactly."""


class Places(NamedTuple):
    """Position, segment and prefix membership of each token.

    Attributes:
        positions: position in the token's own sequence, from 0.
        segments: segment id: number of the token's sequence in the row, from 1; 0 is padding.
        prefix: True at tokens of a prefix-LM's prefix; None without one.
    """

    positions: Int[Tensor, "..."]
    segments: Int[Tensor, "..."]
    prefix: Bool[Tensor, "..."] | None = None

    @classmethod
    def of_text(cls, length: int, device: torch.device | None = None) -> "Places":
        """Return the positions of one sequence of ``length`` tokens, without padding or prefix."""
        positions = torch.arange(length, device=device)[None]
        return cls(positions, torch.ones_like(positions))

    def each(self, change: Callable[[Tensor], Tensor]) -> "Places":
        """Apply ``change`` to each tensor."""
        return Places(change(self.positions), change(self.segments), None if self.prefix is None else change(self.prefix))


class Verdict(NamedTuple):
    """Whether a tile of queries and a tile of keys have some visible pair, and whether all of their pairs are visible."""

    some: Bool[Tensor, "#batch #query_tiles #key_tiles"]
    every: Bool[Tensor, "#batch #query_tiles #key_tiles"]


class Bounds(NamedTuple):
    """Minimum and maximum of a value over the tokens of each tile."""

    low: Int[Tensor, "..."]
    high: Int[Tensor, "..."]


def _bounds(queries: Tensor, keys: Tensor) -> tuple[Bounds, Bounds]:
    """Return bounds over tiles of queries, (batch, query_tiles, 1), and over tiles of keys, (batch, 1, key_tiles)."""
    (a, b), (c, d) = queries.aminmax(dim=-1), keys.aminmax(dim=-1)
    return Bounds(a[:, :, None], b[:, :, None]), Bounds(c[:, None], d[:, None])


@dataclass(frozen=True)
class Rule:
    """A rule that decides which query may attend to which key."""

    grouped: ClassVar[bool] = False
    """Whether tokens must be sorted by ``group`` before tiling, since those that attend to each other are not contiguous."""

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Return whether each query may attend to each key; the arguments broadcast."""
        raise AssertionError("implemented by each rule")

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Classify all pairs of a tile of queries and a tile of keys; the arguments are (batch, tiles, tile) each."""
        raise AssertionError("implemented by each rule")

    def group(self, places: Places) -> Int[Tensor, "..."]:
        """Return the key by which tokens are sorted before tiling."""
        raise AssertionError("implemented by rules with ``grouped``")

    def matrix(self, queries: Places, keys: Places) -> Bool[Tensor, "#batch 1 query key"]:
        """Return the mask as a dense matrix."""
        return self.allows(queries.each(lambda x: x[:, :, None]), keys.each(lambda x: x[:, None]))[:, None]

    def __and__(self, other: "Rule") -> "Rule":
        """Return a rule that allows what both rules allow."""
        return other if isinstance(self, Everywhere) else self if isinstance(other, Everywhere) else And(self, other)

    def __or__(self, other: "Rule") -> "Rule":
        """Return a rule that allows what either rule allows."""
        return Or(self, other)

    def __invert__(self) -> "Rule":
        """Return a rule that allows what this one does not."""
        return Not(self)


@dataclass(frozen=True)
class And(Rule):
    """Intersection of two rules."""

    left: Rule
    right: Rule

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Combine both masks."""
        return self.left.allows(query, key) & self.right.allows(query, key)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Combine both statuses; ``some`` is conservative, since the visible pairs of the two rules may be disjoint."""
        a, b = self.left.judge(queries, keys), self.right.judge(queries, keys)
        return Verdict(a.some & b.some, a.every & b.every)


@dataclass(frozen=True)
class Or(Rule):
    """Union of two rules."""

    left: Rule
    right: Rule

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Combine both masks."""
        return self.left.allows(query, key) | self.right.allows(query, key)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Combine both statuses; ``every`` is conservative, since two partial tiles may together be full."""
        a, b = self.left.judge(queries, keys), self.right.judge(queries, keys)
        return Verdict(a.some | b.some, a.every | b.every)


@dataclass(frozen=True)
class Not(Rule):
    """Complement of a rule."""

    rule: Rule

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Invert the mask."""
        return ~self.rule.allows(query, key)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Invert the status: a full tile becomes empty, an empty one full."""
        some, every = self.rule.judge(queries, keys)
        return Verdict(~every, ~some)


@dataclass(frozen=True)
class Everywhere(Rule):
    """Full attention: no restriction."""

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Return True for every pair; the comparison with 0 gives the broadcast shape, since no position is negative."""
        return (query.positions >= 0) & (key.positions >= 0)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Classify every tile as full."""
        all_of_it = self.allows(queries.each(lambda x: x[:, :, None, 0]), keys.each(lambda x: x[:, None, :, 0]))
        return Verdict(all_of_it, all_of_it)


@dataclass(frozen=True)
class Unwritten(Rule):
    """A rule that linear and low-rank attention follow without building its matrix."""

    rule: Rule

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Return the mask of ``rule``."""
        return self.rule.allows(query, key)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Return the status of ``rule``."""
        return self.rule.judge(queries, keys)


@dataclass(frozen=True)
class Distance(Rule):
    """Key j is visible to query i if least <= i - j <= most: causal masks and sliding windows."""

    least: int = -FAR
    most: int = FAR

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Compare the distance i - j with the bounds."""
        distance = query.positions - key.positions
        return (distance >= self.least) & (distance <= self.most)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Bound the distance over each tile."""
        q, k = _bounds(queries.positions, keys.positions)
        shortest, longest = q.low - k.high, q.high - k.low
        return Verdict((longest >= self.least) & (shortest <= self.most), (shortest >= self.least) & (longest <= self.most))


@dataclass(frozen=True)
class Near(Rule):
    """Sliding window on a grid of ``width`` patches per row: less than ``size`` rows and columns away (Ramachandran et al. 2019)."""

    size: int
    width: int

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Compare the distances in rows and in columns with ``size``."""
        rows = query.positions // self.width - key.positions // self.width
        columns = query.positions % self.width - key.positions % self.width
        return (rows.abs() < self.size) & (columns.abs() < self.size)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Bound the distances in rows and in columns independently."""
        rows = self._judge(queries.positions // self.width, keys.positions // self.width)
        columns = self._judge(queries.positions % self.width, keys.positions % self.width)
        return Verdict(rows.some & columns.some, rows.every & columns.every)

    def _judge(self, queries: Tensor, keys: Tensor) -> Verdict:
        q, k = _bounds(queries, keys)
        shortest, longest = torch.maximum(q.low - k.high, k.low - q.high), torch.maximum(q.high - k.low, k.high - q.low)
        return Verdict(shortest < self.size, longest < self.size)


@dataclass(frozen=True)
class Powers(Rule):
    """LogSparse attention: distances below ``local``, and powers of two (Li et al. 2019, section 4.2)."""

    local: int

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Test the distance d; it is a power of two if d & (d - 1) = 0."""
        distance = (query.positions - key.positions).abs()
        return (distance < self.local) | ((distance & (distance - 1)) == 0)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Test whether a power of two lies between the bounds of the distance."""
        q, k = _bounds(queries.positions, keys.positions)
        below, above = q.low - k.high, q.high - k.low
        shortest, longest = torch.maximum(below, -above).clamp(min=0), torch.maximum(above, -below)
        greatest = torch.bitwise_left_shift(torch.ones_like(longest), (torch.frexp(longest.double()).exponent - 1).clamp(min=0))
        some = (shortest < self.local) | (greatest >= shortest)
        return Verdict(some, longest < self.local)


@dataclass(frozen=True)
class Same(Rule):
    """Tokens attend within their own group."""

    def number(self, places: Places) -> Int[Tensor, "..."]:
        """Return the group id of each token."""
        raise AssertionError("implemented by each rule")

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Compare the group ids."""
        return self.number(query) == self.number(key)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Compare the bounds of the group ids."""
        q, k = _bounds(self.number(queries), self.number(keys))
        return Verdict((q.low <= k.high) & (k.low <= q.high), (q.low == k.high) & (k.low == q.high))


@dataclass(frozen=True)
class SameSegment(Same):
    """Tokens attend within their own segment. Padding, segment 0, attends to padding only, so that no row of the mask is empty."""

    def number(self, places: Places) -> Int[Tensor, "..."]:
        """Return the segment ids."""
        return places.segments


@dataclass(frozen=True)
class SameBlock(Same):
    """Tokens attend within their own block of ``size`` tokens (Child et al. 2019, section 4.3)."""

    size: int

    def number(self, places: Places) -> Int[Tensor, "..."]:
        """Return the number of each token's block."""
        return places.positions // self.size


@dataclass(frozen=True)
class SameResidue(Same):
    """Strided attention: tokens attend at distances divisible by ``stride`` (Child et al. 2019, section 4.2)."""

    grouped = True
    stride: int

    def number(self, places: Places) -> Int[Tensor, "..."]:
        """Return position modulo ``stride``."""
        return places.positions % self.stride

    def group(self, places: Places) -> Int[Tensor, "..."]:
        """Return position modulo ``stride``: tokens that attend to each other lie ``stride`` apart."""
        return self.number(places)


@dataclass(frozen=True)
class LastColumns(Rule):
    """All tokens attend to the last ``columns`` tokens of each block of ``stride`` (Child et al. 2019, section 4.3)."""

    grouped = True
    stride: int
    columns: int

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Test the key's position in its block."""
        return (query.positions >= 0) & self._chosen(key)

    def _chosen(self, places: Places) -> Tensor:
        return places.positions % self.stride >= self.stride - self.columns

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Test whether a tile of keys has summary tokens, and whether it has only those."""
        _, k = _bounds(queries.positions, self._chosen(keys).long())
        return Verdict(k.high > 0, k.low > 0)

    def group(self, places: Places) -> Int[Tensor, "..."]:
        """Return 1 for summary tokens, 0 for others."""
        return self._chosen(places).long()


@dataclass(frozen=True)
class First(Rule):
    """Global attention: the first ``size`` tokens attend to all tokens, and all attend to them (Zaheer et al. 2020, section 2)."""

    size: int

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Compare both positions with ``size``."""
        return (query.positions < self.size) | (key.positions < self.size)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Compare the bounds of both positions with ``size``."""
        q, k = _bounds(queries.positions, keys.positions)
        return Verdict((q.low < self.size) | (k.low < self.size), (q.high < self.size) | (k.high < self.size))


@dataclass(frozen=True)
class InPrefix(Rule):
    """All tokens attend to the prefix (Raffel et al. 2020, section 3.2.1); combine with ``SAME_SEGMENT`` in packed rows."""

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Test whether the key is in a prefix."""
        return (query.positions >= 0) & self._inside(key)

    def _inside(self, places: Places) -> Tensor:
        return places.positions < 0 if places.prefix is None else places.prefix

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Test whether a tile of keys has prefix tokens, and whether it has only those."""
        _, k = _bounds(queries.positions, self._inside(keys).long())
        return Verdict(k.high > 0, k.low > 0)


@dataclass(frozen=True)
class RandomBlocks(Rule):
    """Random attention: each block of ``size`` tokens and ``blocks`` earlier blocks attend to each other (Zaheer et al. 2020, section 2).

    The earlier blocks are drawn by a hash of the block number and ``seed``.
    """

    blocks: int
    size: int
    seed: int

    def allows(self, query: Places, key: Places) -> Bool[Tensor, "..."]:
        """Test whether the blocks of query and key are linked."""
        return self._joined(query.positions // self.size, key.positions // self.size)

    def _joined(self, a: Tensor, b: Tensor) -> Tensor:
        drawn = [(self._drawn(a, i) == b) & (b < a) | (self._drawn(b, i) == a) & (a < b) for i in range(self.blocks)]
        return reduce(or_, drawn)

    def _drawn(self, block: Tensor, number: int) -> Tensor:
        """Draw an earlier block; block 0 draws itself."""
        return _mixed(block * 64 + number, self.seed) % block.clamp(min=1)

    def judge(self, queries: Places, keys: Places) -> Verdict:
        """Test all pairs of blocks that two tiles span, if there are few; a tile with several sequences may span many."""
        q, k = _bounds(queries.positions // self.size, keys.positions // self.size)
        reach = min((queries.positions.shape[-1] - 2) // self.size + 2, MOST_BLOCKS)  # blocks that a tile of one sequence can span
        many = (q.high - q.low >= reach) | (k.high - k.low >= reach)
        pairs = [
            self._joined(torch.minimum(q.low + i, q.high), torch.minimum(k.low + j, k.high)) for i in range(reach) for j in range(reach)
        ]
        return Verdict(reduce(or_, pairs) | many, reduce(and_, pairs) & ~many)


def _mixed(x: Tensor, seed: int) -> Tensor:
    """Hash integers below 2^32 to 32 bits by multiply-xorshift rounds."""
    for multiplier in (0x7FEB352D, 0x2C1B3C6D, 0x297A2D39):
        x = (x + seed) & 0xFFFFFFFF
        x = ((x ^ (x >> 16)) * multiplier) & 0xFFFFFFFF
    return x ^ (x >> 15)


EVERYWHERE = Everywhere()
SAME_SEGMENT = SameSegment()
CAUSAL = Distance(least=0)
"""Each token attends to itself and earlier tokens."""

LOOKING_BACK = SAME_SEGMENT & CAUSAL
"""Mask of a decoder: each token attends to itself and earlier tokens of its own sequence."""

BOTH_WAYS_IN_PREFIX = SAME_SEGMENT & (CAUSAL | InPrefix())
"""Mask of a prefix-LM: causal, and every token attends to the whole prefix of its sequence."""

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
    """Build the rule of a combined pattern."""
    parts = [rule_of(part, width) for part in pattern.of]
    return reduce(and_, parts) if pattern.kind == "all" else reduce(or_, parts) if pattern.kind == "any" else ~reduce(or_, parts)


def rule_of(pattern: Brick, width: int = 0) -> Rule:
    """Build the mask rule of a sparsity pattern.

    Args:
        pattern: configuration of the pattern.
        width: patches per row of an image; 0 for text.
    """
    return build(pattern, width)


def build_rules(attention: MultiHead, family: Rule) -> list[Rule]:
    """Build the mask rules of a stack: ``family`` and the sparsity pattern. Block i uses rule i modulo their number."""
    if attention.approximation.kind != "none":
        return [Unwritten(family)]
    return [family & rule_of(part) for part in patterns_of(attention.pattern)]
