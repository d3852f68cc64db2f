"""Mask rules: objects that decide which query may attend to which key, and that combine with ``&``, ``|`` and ``~``.

A rule is evaluated in three ways:

- ``mask_mod``: elementwise, for tensors of queries and keys that broadcast, as in FlexAttention;
- ``dense``: for all queries and all keys, as a boolean matrix;
- ``classify_tile``: for every query tile and key tile, whether some and whether all query-key pairs are visible. The status is computed
  from bounds on the positions, without the matrix. It may be conservative (visible instead of empty, partial instead of full), never the
  reverse.
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
from transom.config.component_registry import build, implements
from transom.config.components import MultiHeadAttentionConfig
from transom.config.patterns import block_patterns
from transom.config.schema import ComponentConfig

TILE_SIZE = 64
"""Tokens per tile: large enough for a fast matrix product, small enough that partly visible tiles waste little."""

UNBOUNDED = 2**40
"""Larger than any distance between two tokens."""

MAX_BLOCKS_PER_TILE = 4
"""Maximum number of blocks of random attention that a tile may span and still be classified exactly."""


class TokenPositions(NamedTuple):
    """Position, segment and prefix membership of each token.

    Attributes:
        positions: position in the token's own sequence, from 0.
        segments: segment id: number of the token's sequence in the row, from 1; 0 is padding.
        prefix: True at tokens of a prefix-LM's prefix; None without one.
        lengths: length of the token's sequence, by which some rotary scalings choose their frequencies; None for the context window.
    """

    positions: Int[Tensor, "..."]
    segments: Int[Tensor, "..."]
    prefix: Bool[Tensor, "..."] | None = None
    lengths: Int[Tensor, "..."] | None = None

    @classmethod
    def single_sequence(cls, length: int, device: torch.device | None = None) -> "TokenPositions":
        """Return the positions of one sequence of ``length`` tokens, without padding or prefix."""
        positions = torch.arange(length, device=device)[None]
        return cls(positions, torch.ones_like(positions))

    def select(self, indices: slice | list[int]) -> "TokenPositions":
        """Return the tokens with these indices in each row."""
        return self.map(lambda x: x[:, indices])

    def map(self, change: Callable[[Tensor], Tensor]) -> "TokenPositions":
        prefix, lengths = (None if x is None else change(x) for x in (self.prefix, self.lengths))
        return TokenPositions(change(self.positions), change(self.segments), prefix, lengths)


class TileStatus(NamedTuple):
    """Whether some, and whether all query-key pairs of a query tile and a key tile are visible."""

    any_visible: Bool[Tensor, "#batch #query_tiles #key_tiles"]
    all_visible: Bool[Tensor, "#batch #query_tiles #key_tiles"]


class TileBounds(NamedTuple):
    """Minimum and maximum of a value over the tokens of each tile."""

    low: Int[Tensor, "..."]
    high: Int[Tensor, "..."]


def _tile_bounds(queries: Tensor, keys: Tensor) -> tuple[TileBounds, TileBounds]:
    """Return the bounds of ``queries`` per query tile, (batch, query_tiles, 1), and of ``keys`` per key tile, (batch, 1, key_tiles)."""
    (a, b), (c, d) = queries.aminmax(dim=-1), keys.aminmax(dim=-1)
    return TileBounds(a[:, :, None], b[:, :, None]), TileBounds(c[:, None], d[:, None])


@dataclass(frozen=True)
class MaskRule:
    """A rule that decides which query may attend to which key."""

    reordered: ClassVar[bool] = False
    """Whether tokens must be sorted by ``sort_key`` before tiling, since tokens that attend to each other are far apart."""

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        """Return whether each query may attend to each key; the arguments broadcast."""
        raise AssertionError("implemented by each rule")

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Return the status of every query tile and key tile; the tensors of both arguments have shape (batch, tiles, tile)."""
        raise AssertionError("implemented by each rule")

    def sort_key(self, tokens: TokenPositions) -> Int[Tensor, "..."]:
        """Return the key by which tokens are sorted before tiling."""
        raise AssertionError("implemented by rules with ``reordered``")

    def dense(self, queries: TokenPositions, keys: TokenPositions) -> Bool[Tensor, "#batch 1 query key"]:
        return self.mask_mod(queries.map(lambda x: x[:, :, None]), keys.map(lambda x: x[:, None]))[:, None]

    def __and__(self, other: "MaskRule") -> "MaskRule":
        """Return the rule that allows a query-key pair if both rules allow it."""
        return other if isinstance(self, FullRule) else self if isinstance(other, FullRule) else AndRule(self, other)

    def __or__(self, other: "MaskRule") -> "MaskRule":
        """Return the rule that allows a query-key pair if at least one of the rules allows it."""
        return OrRule(self, other)

    def __invert__(self) -> "MaskRule":
        """Return the rule that allows a query-key pair if this rule does not allow it."""
        return NotRule(self)


@dataclass(frozen=True)
class AndRule(MaskRule):
    """Intersection of two rules."""

    left: MaskRule
    right: MaskRule

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        return self.left.mask_mod(query, key) & self.right.mask_mod(query, key)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Combine the statuses of both rules. ``any_visible`` may be True for an empty tile: the visible pairs may be disjoint."""
        a, b = self.left.classify_tile(queries, keys), self.right.classify_tile(queries, keys)
        return TileStatus(a.any_visible & b.any_visible, a.all_visible & b.all_visible)


@dataclass(frozen=True)
class OrRule(MaskRule):
    """Union of two rules."""

    left: MaskRule
    right: MaskRule

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        return self.left.mask_mod(query, key) | self.right.mask_mod(query, key)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Combine the statuses of both rules. ``all_visible`` may be False for a full tile: two partial tiles may together be full."""
        a, b = self.left.classify_tile(queries, keys), self.right.classify_tile(queries, keys)
        return TileStatus(a.any_visible | b.any_visible, a.all_visible | b.all_visible)


@dataclass(frozen=True)
class NotRule(MaskRule):
    """Complement of a rule."""

    rule: MaskRule

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        return ~self.rule.mask_mod(query, key)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Invert the status: a full tile becomes empty, an empty one full."""
        any_visible, all_visible = self.rule.classify_tile(queries, keys)
        return TileStatus(~all_visible, ~any_visible)


@dataclass(frozen=True)
class FullRule(MaskRule):
    """Full attention: no restriction."""

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        """Return True for every pair of positions, computed as position >= 0 so that the result has their broadcast shape."""
        return (query.positions >= 0) & (key.positions >= 0)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        all_visible = self.mask_mod(queries.map(lambda x: x[:, :, None, 0]), keys.map(lambda x: x[:, None, :, 0]))
        return TileStatus(all_visible, all_visible)


@dataclass(frozen=True)
class WrappedRule(MaskRule):
    """Wraps a rule, to say how its mask is built."""

    rule: MaskRule

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        return self.rule.mask_mod(query, key)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        return self.rule.classify_tile(queries, keys)


@dataclass(frozen=True)
class ImplicitMask(WrappedRule):
    """Wraps a rule that linear and low-rank attention apply without building the mask matrix."""


@dataclass(frozen=True)
class DeferredMask(WrappedRule):
    """Wraps a rule that attention itself evaluates, part by part, so that no mask of all queries and keys is built."""


@dataclass(frozen=True)
class DistanceRule(MaskRule):
    """Key j is visible to query i if min_distance <= i - j <= max_distance: causal masks and sliding windows."""

    min_distance: int = -UNBOUNDED
    max_distance: int = UNBOUNDED

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        """Return whether i - max_distance <= j <= i - min_distance, without a matrix of distances, which has 8 bytes per pair."""
        visible = key.positions <= query.positions - self.min_distance
        return visible if self.max_distance == UNBOUNDED else visible & (key.positions >= query.positions - self.max_distance)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Classify by the smallest and the largest distance between a query tile and a key tile."""
        q, k = _tile_bounds(queries.positions, keys.positions)
        nearest, farthest = q.low - k.high, q.high - k.low
        return TileStatus(
            (farthest >= self.min_distance) & (nearest <= self.max_distance),
            (nearest >= self.min_distance) & (farthest <= self.max_distance),
        )


@dataclass(frozen=True)
class Window2dRule(MaskRule):
    """2D window: patches less than ``size`` rows and columns away, on a grid of ``width`` patches per row (Ramachandran et al. 2019)."""

    size: int
    width: int

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        rows = query.positions // self.width - key.positions // self.width
        columns = query.positions % self.width - key.positions % self.width
        return (rows.abs() < self.size) & (columns.abs() < self.size)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Classify by the smallest and the largest distance, for rows and columns independently."""
        rows = self._classify_axis(queries.positions // self.width, keys.positions // self.width)
        columns = self._classify_axis(queries.positions % self.width, keys.positions % self.width)
        return TileStatus(rows.any_visible & columns.any_visible, rows.all_visible & columns.all_visible)

    def _classify_axis(self, queries: Tensor, keys: Tensor) -> TileStatus:
        q, k = _tile_bounds(queries, keys)
        nearest, farthest = torch.maximum(q.low - k.high, k.low - q.high), torch.maximum(q.high - k.low, k.high - q.low)
        return TileStatus(nearest < self.size, farthest < self.size)


@dataclass(frozen=True)
class LogSparseRule(MaskRule):
    """LogSparse attention: tokens attend at distances below ``local`` and at powers of two (Li et al. 2019, section 4.2)."""

    local: int

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        """Return whether the distance d is below ``local`` or a power of two: d & (d - 1) = 0."""
        distance = (query.positions - key.positions).abs()
        return (distance < self.local) | ((distance & (distance - 1)) == 0)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Classify by whether a power of two, or a distance below ``local``, lies between the smallest and the largest distance."""
        q, k = _tile_bounds(queries.positions, keys.positions)
        below, above = q.low - k.high, q.high - k.low
        nearest, farthest = torch.maximum(below, -above).clamp(min=0), torch.maximum(above, -below)
        largest_power = torch.bitwise_left_shift(torch.ones_like(farthest), (torch.frexp(farthest.double()).exponent - 1).clamp(min=0))
        any_visible = (nearest < self.local) | (largest_power >= nearest)
        return TileStatus(any_visible, farthest < self.local)


@dataclass(frozen=True)
class SameGroupRule(MaskRule):
    """Tokens attend to all tokens with the same ``group_id``."""

    def group_id(self, tokens: TokenPositions) -> Int[Tensor, "..."]:
        raise AssertionError("implemented by each rule")

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        return self.group_id(query) == self.group_id(key)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Classify by the smallest and the largest group id of each tile."""
        q, k = _tile_bounds(self.group_id(queries), self.group_id(keys))
        return TileStatus((q.low <= k.high) & (k.low <= q.high), (q.low == k.high) & (k.low == q.high))


@dataclass(frozen=True)
class SameSegmentRule(SameGroupRule):
    """Tokens attend within their own segment. Padding, segment 0, attends to padding only, so that no row of the mask is empty."""

    def group_id(self, tokens: TokenPositions) -> Int[Tensor, "..."]:
        return tokens.segments


@dataclass(frozen=True)
class LocalRule(SameGroupRule):
    """Tokens attend within their own block of ``size`` tokens (Child et al. 2019, section 4.3)."""

    size: int

    def group_id(self, tokens: TokenPositions) -> Int[Tensor, "..."]:
        """Return the number of each token's block."""
        return tokens.positions // self.size


@dataclass(frozen=True)
class StridedRule(SameGroupRule):
    """Strided attention: tokens attend at distances divisible by ``stride`` (Child et al. 2019, section 4.2)."""

    reordered = True
    stride: int

    def group_id(self, tokens: TokenPositions) -> Int[Tensor, "..."]:
        """Return position modulo ``stride``."""
        return tokens.positions % self.stride

    def sort_key(self, tokens: TokenPositions) -> Int[Tensor, "..."]:
        """Return position modulo ``stride``, so that tokens that attend to each other become adjacent."""
        return self.group_id(tokens)


@dataclass(frozen=True)
class SummaryRule(MaskRule):
    """All tokens attend to the last ``columns`` tokens of each block of ``stride`` tokens (Child et al. 2019, section 4.3)."""

    reordered = True
    stride: int
    columns: int

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        return (query.positions >= 0) & self._is_summary(key)

    def _is_summary(self, tokens: TokenPositions) -> Tensor:
        return tokens.positions % self.stride >= self.stride - self.columns

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Classify by whether a key tile contains summary tokens, and whether it contains only summary tokens."""
        _, k = _tile_bounds(queries.positions, self._is_summary(keys).long())
        return TileStatus(k.high > 0, k.low > 0)

    def sort_key(self, tokens: TokenPositions) -> Int[Tensor, "..."]:
        """Return 1 for summary tokens, 0 for others."""
        return self._is_summary(tokens).long()


@dataclass(frozen=True)
class GlobalRule(MaskRule):
    """Global attention: the first ``size`` tokens attend to all tokens, and all attend to them (Zaheer et al. 2020, section 2)."""

    size: int

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        return (query.positions < self.size) | (key.positions < self.size)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Classify by whether a query or key tile contains global tokens, and whether one of them contains only global tokens."""
        q, k = _tile_bounds(queries.positions, keys.positions)
        return TileStatus((q.low < self.size) | (k.low < self.size), (q.high < self.size) | (k.high < self.size))


@dataclass(frozen=True)
class PrefixRule(MaskRule):
    """All tokens attend to the prefix (Raffel et al. 2020, section 3.2.1); combine with ``SAME_SEGMENT`` in packed rows."""

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        return (query.positions >= 0) & self._in_prefix(key)

    def _in_prefix(self, tokens: TokenPositions) -> Tensor:
        return tokens.positions < 0 if tokens.prefix is None else tokens.prefix

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Classify by whether a key tile contains prefix tokens, and whether it contains only prefix tokens."""
        _, k = _tile_bounds(queries.positions, self._in_prefix(keys).long())
        return TileStatus(k.high > 0, k.low > 0)


@dataclass(frozen=True)
class RandomRule(MaskRule):
    """Random attention: each block of ``size`` tokens and ``blocks`` earlier blocks attend to each other (Zaheer et al. 2020, section 2).

    The earlier blocks are drawn by a hash of the block number and ``seed``.
    """

    blocks: int
    size: int
    seed: int

    def mask_mod(self, query: TokenPositions, key: TokenPositions) -> Bool[Tensor, "..."]:
        """Return whether the block of the query has drawn the block of the key, or the other way around."""
        return self._linked(query.positions // self.size, key.positions // self.size)

    def _linked(self, a: Tensor, b: Tensor) -> Tensor:
        links = [(self._draw_block(a, i) == b) & (b < a) | (self._draw_block(b, i) == a) & (a < b) for i in range(self.blocks)]
        return reduce(or_, links)

    def _draw_block(self, block: Tensor, number: int) -> Tensor:
        """Return the earlier block that ``block`` draws as its choice ``number``; block 0 draws itself."""
        return _hash32(block * 64 + number, self.seed) % block.clamp(min=1)

    def classify_tile(self, queries: TokenPositions, keys: TokenPositions) -> TileStatus:
        """Classify by all blocks that two tiles span; tiles that span many, as with several short sequences, count as partial."""
        q, k = _tile_bounds(queries.positions // self.size, keys.positions // self.size)
        n_spanned = min(
            (queries.positions.shape[-1] - 2) // self.size + 2, MAX_BLOCKS_PER_TILE
        )  # blocks that a tile of one sequence can span
        too_many = (q.high - q.low >= n_spanned) | (k.high - k.low >= n_spanned)
        pairs = [
            self._linked(torch.minimum(q.low + i, q.high), torch.minimum(k.low + j, k.high))
            for i in range(n_spanned)
            for j in range(n_spanned)
        ]
        return TileStatus(reduce(or_, pairs) | too_many, reduce(and_, pairs) & ~too_many)


def _hash32(x: Tensor, seed: int) -> Tensor:
    """Hash integers below 2^32 to 32 bits by multiply-xorshift rounds."""
    for multiplier in (0x7FEB352D, 0x2C1B3C6D, 0x297A2D39):
        x = (x + seed) & 0xFFFFFFFF
        x = ((x ^ (x >> 16)) * multiplier) & 0xFFFFFFFF
    return x ^ (x >> 15)


FULL = FullRule()
SAME_SEGMENT = SameSegmentRule()
CAUSAL = DistanceRule(min_distance=0)
"""The causal mask: each token attends to itself and earlier tokens."""

CAUSAL_IN_SEGMENT = SAME_SEGMENT & CAUSAL
"""Causal mask of a decoder with packed or padded rows: each token attends to itself and earlier tokens of its own sequence."""

PREFIX_LM = SAME_SEGMENT & (CAUSAL | PrefixRule())
"""Mask of a prefix-LM: causal, and every token attends to the whole prefix of its sequence."""

implements(patterns.FullPatternConfig)(lambda p, width: FULL)
implements(patterns.WindowPatternConfig)(lambda p, width: DistanceRule(1 - p.size, p.size - 1))
implements(patterns.Window2dPatternConfig)(lambda p, width: Window2dRule(p.size, width))
implements(patterns.StridedPatternConfig)(lambda p, width: StridedRule(p.stride))
implements(patterns.BlockLocalPatternConfig)(lambda p, width: LocalRule(p.size))
implements(patterns.SummaryPatternConfig)(lambda p, width: SummaryRule(p.stride, p.columns))
implements(patterns.LogSparsePatternConfig)(lambda p, width: LogSparseRule(p.window))
implements(patterns.GlobalPatternConfig)(lambda p, width: GlobalRule(p.size))
implements(patterns.RandomPatternConfig)(lambda p, width: RandomRule(p.blocks, p.size, p.seed))
implements(patterns.PrefixPatternConfig)(lambda p, width: PrefixRule())


@implements(patterns.CombinedPatternConfig)
def combine_rules(pattern: patterns.CombinedPatternConfig, width: int) -> MaskRule:
    """Build the rule of a combined pattern: a token is visible if any, all or none (``not``) of the parts allow it."""
    parts = [build_rule(part, width) for part in pattern.patterns]
    return reduce(and_, parts) if pattern.kind == "all" else reduce(or_, parts) if pattern.kind == "any" else ~reduce(or_, parts)


def build_rule(pattern: ComponentConfig, width: int = 0) -> MaskRule:
    """Build the mask rule of a sparsity pattern.

    Args:
        pattern: configuration of the pattern.
        width: patches per row of an image; 0 for text.
    """
    return build(pattern, width)


def build_mask_rules(attention: MultiHeadAttentionConfig, base_rule: MaskRule) -> list[MaskRule]:
    """Build the mask rules of a stack, ``base_rule`` combined with each sparsity pattern; block i uses ``rules[i % len(rules)]``."""
    if attention.approximation.kind != "none":
        return [ImplicitMask(base_rule)]
    return [base_rule & build_rule(part) for part in block_patterns(attention.pattern)]
