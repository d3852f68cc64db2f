"""Block-sparse attention on a CPU: exact, forward and backward, with time and memory proportional to the visible tiles of the mask.

Sequences are split into tiles. Each query tile gathers the key tiles that any of its queries may attend to, and the explicit attention of
``kernels/attention.py`` is computed on them. The backward pass recomputes the weights, so that none are stored. If tokens that attend to
each other are far apart (strided patterns), they are first reordered to be adjacent. A union of patterns that require different orders is
computed in disjoint parts, each with its own softmax; the parts are combined by their logsumexp.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from transom.kernels.attention import Lean, gradients, lean
from transom.kernels.second_order import differentiable_gradients, wants_graph
from transom.layers.attention import PLAIN, Terms
from transom.layers.masks.rule import TILE, And, Or, Places, Rule
from transom.layers.masks.visible_tiles import VisibleTiles
from transom.layers.position import Position

PAIRS_AT_ONCE = 2**15
"""Maximum scores per head held at once, unless one query tile has more. Larger chunks take more memory and are not faster."""

WASTE = 0.2
"""Maximum fraction of a chunk's key tiles that are padding, added so that all its query tiles have the same number."""

Bias = Callable[..., Tensor | None]
"""Maps query positions, key positions and learned parameters to the bias of the scores; None for no bias."""


class Chunk(NamedTuple):
    """Query tiles that are computed together, each with the same number of key tiles.

    Attributes:
        queries: indices of the query tiles, over all sequences of the batch.
        keys: indices of the visible key tiles of each query tile; the partially masked ones come first.
        mask: mask of the partially masked tiles; the others are fully visible.
    """

    queries: Int[Tensor, "tiles"]
    keys: Int[Tensor, "tiles seen"]
    mask: Bool[Tensor, "tiles 1 query masked"]


class Side(NamedTuple):
    """Queries or keys split into tiles.

    Attributes:
        places: positions and segments of the tokens; the last token is repeated to fill its tile.
        order: permutation of the tokens of each sequence; None for the original order.
        length: tokens per sequence.
    """

    places: Places
    order: Int[Tensor, "batch length"] | None
    length: int

    @property
    def n_tiles(self) -> int:
        """Tiles per sequence."""
        return self.places.positions.shape[1]

    def arrange(self, x: Float[Tensor, "batch heads length width"]) -> Float[Tensor, "batch heads length width"]:
        """Permute vectors into ``order``."""
        return x if self.order is None else x.gather(2, self.order[:, None, :, None].expand_as(x))

    def put_back(self, x: Float[Tensor, "batch heads length width"]) -> Float[Tensor, "batch heads length width"]:
        """Permute vectors from ``order`` back to the original order."""
        return x if self.order is None else torch.empty_like(x).scatter_(2, self.order[:, None, :, None].expand_as(x), x)

    def lay(self, x: Float[Tensor, "batch heads length width"]) -> Float[Tensor, "batch heads tiles tile width"]:
        """Reorder vectors and split them into tiles; the last tile is padded with zeros."""
        x = self.arrange(x)
        missing = -self.length % TILE
        if missing:
            x = torch.cat([x, x.new_zeros(*x.shape[:2], missing, x.shape[3])], 2)
        return x.unflatten(2, (-1, TILE)).contiguous()

    def take_up(self, x: Float[Tensor, "batch heads tiles tile width"]) -> Float[Tensor, "batch heads length width"]:
        """Join tiles to sequences in the original order; inverse of ``lay``."""
        return self.put_back(x.flatten(2, 3)[:, :, : self.length])


class Part(NamedTuple):
    """A part of a mask: the layouts of its queries and keys, and its chunks."""

    queries: Side
    keys: Side
    chunks: list[Chunk]

    @property
    def sides(self) -> tuple[Side, Side, Side]:
        """Layouts of queries, keys and values."""
        return self.queries, self.keys, self.keys

    @property
    def pairs(self) -> int:
        """Computed scores per head."""
        return sum(chunk.keys.numel() for chunk in self.chunks) * TILE**2


def parts_of(rule: Rule) -> list[tuple[Rule, Rule | None]]:
    """Split a rule into disjoint rules, each with the rule by whose groups its tokens are reordered (None: original order).

    (a | b) & c becomes a & c and b & c & ~a if a and b require different orders.
    """
    if isinstance(rule, Or):
        together = dict[Rule | None, Rule]()
        for part, order in parts_of(rule.left) + parts_of(rule.right):
            together[order] = together[order] | part if order in together else part
        orders = sorted(together, key=lambda order: order is not None)
        before = [reduce(or_, (together[order] for order in orders[:i])) for i in range(1, len(orders))]
        rest = [together[order] & ~seen for order, seen in zip(orders[1:], before, strict=True)]
        return list(zip([together[orders[0]], *rest], orders, strict=True))
    if isinstance(rule, And):
        for inner, outer in ((rule.left, rule.right), (rule.right, rule.left)):
            parts = parts_of(inner)
            if len(parts) > 1 or parts[0][1] is not None:
                return [(outer & part, order) for part, order in parts]
    return [(rule, rule if rule.grouped else None)]


def plan(rule: Rule, queries: Places, keys: Places) -> list[Part]:
    """Find the visible tiles of a mask; parts without any are dropped.

    Args:
        rule: mask rule.
        queries: positions of the queries.
        keys: positions of the keys.
    """
    parts = [_part(each, side_of(queries, order), side_of(keys, order)) for each, order in parts_of(rule)]
    return [part for part in parts if part.chunks]


def side_of(places: Places, by: Rule | None, tile: int = TILE) -> Side:
    """Split token positions into tiles, with the tokens of each group of ``by`` adjacent."""
    shape = torch.broadcast_shapes(*(x.shape for x in places if x is not None))
    places = places.each(lambda x: x.expand(shape))
    length, order = places.positions.shape[1], None
    if by is not None:
        group = by.group(places)
        order = group.argsort(dim=1, stable=True)
        order = order.gather(1, places.segments.gather(1, order).argsort(dim=1, stable=True))
        places = places.each(lambda x: x.gather(1, order))
    missing = -length % tile
    tiled = places.each(lambda x: torch.cat([x, x[:, -1:].expand(-1, missing)], 1).unflatten(1, (-1, tile)))
    return Side(tiled, order, length)


def _part(rule: Rule, queries: Side, keys: Side) -> Part:
    some, every = (x.clone() for x in torch.broadcast_tensors(*rule.judge(queries.places, keys.places)))
    if keys.length % TILE:
        every[:, :, -1] = False
    rank = (some.long() + (some & every)).flatten(0, 1)  # 0 for none, 1 for some, 2 for all
    rank, seen = rank.sort(dim=-1, stable=True)  # visible tiles last, fully visible ones after partially visible ones
    counts = (rank > 0).sum(-1)
    by_count = counts.argsort(stable=True)
    by_count = by_count[counts[by_count] > 0]
    found = counts[by_count].tolist()
    chunks = []
    for first, last in _cuts(found):
        tiles, width = by_count[first:last], found[last - 1]
        chunks.append(_chunk(rule, queries, keys, tiles, rank[tiles, -width:], seen[tiles, -width:]))
    return Part(queries, keys, chunks)


def _chunk(rule: Rule, queries: Side, keys: Side, tiles: Tensor, rank: Tensor, seen: Tensor) -> Chunk:
    """Build a chunk from query tiles, their visible key tiles, and the mask of the partially visible ones."""
    row = (tiles // queries.n_tiles)[:, None]
    n_masked = int((rank < 2).sum(-1).max())
    masked = seen[:, :n_masked]
    query = queries.places.each(lambda x: x.flatten(0, 1)[tiles][:, :, None])
    key = keys.places.each(lambda x: x[row, masked].flatten(1)[:, None])
    there = masked[:, :, None] * TILE + torch.arange(TILE, device=tiles.device) < keys.length
    there &= rank[:, :n_masked, None] > 0
    mask = rule.allows(query, key) & there.flatten(1)[:, None]
    return Chunk(tiles, row * keys.n_tiles + seen, mask[:, None])


def _cuts(counts: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of runs of the ascending key-tile counts that fit in memory and differ little."""
    first, total = 0, 0
    for last, count in enumerate(counts):
        pairs = count * (last + 1 - first)
        if last > first and (pairs * TILE**2 > PAIRS_AT_ONCE or pairs - total - count > WASTE * pairs):
            yield first, last
            first, total = last, 0
        total += count
    if counts:
        yield first, len(counts)


class Tiles(VisibleTiles):
    """A block-sparse mask for a CPU; its parts are of type ``Part``."""

    def bias(self, queries: Tensor, keys: Tensor, *learned: Tensor) -> Tensor | None:
        """Return the bias of the scores between positions."""
        return None if self.position is None else self.position.bias(queries, keys, *learned)


def plan_tiles(rule: Rule, queries: Places, keys: Places, position: Position | None = None) -> Tiles:
    """Find the visible tiles of a mask.

    Args:
        rule: mask rule.
        queries: positions of the queries.
        keys: positions of the keys.
        position: position encoding whose bias is added to the scores.
    """
    return Tiles(plan(rule, queries, keys), rule, queries, keys, position)


def planned_on_cpu(rule: Rule, queries: Places, keys: Places, position: Position | None) -> bool:
    """Return whether ``plan_tiles`` applies."""
    return queries.segments.device.type == "cpu"


def over_tiles(q: Tensor, k: Tensor, v: Tensor, tiles: VisibleTiles, terms: Terms = PLAIN) -> bool:
    """Return whether ``attend_tiles`` applies."""
    return isinstance(tiles, Tiles) and terms.score is None


def attend_tiles(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    tiles: VisibleTiles,
    terms: Terms = PLAIN,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute attention over the visible tiles of a mask; equal to ``attend_explicit`` with the dense mask and bias."""
    assert tiles.parts, "at least one tile is visible"
    learned = () if tiles.position is None else tiles.position.learned
    z: Tensor = _OverTiles.apply(tiles, lean(terms), q, k, v, terms.sinks, *learned)  # type: ignore[no-untyped-call]
    return z


def joined(found: Sequence[tuple[Tensor, ...]], sinks: Float[Tensor, "n_heads"] | None) -> Float[Tensor, "batch n_heads query d_value"]:
    """Combine the outputs of the parts of a mask by their logsumexp, which is not required for a single part.

    With output Z_p and logsumexp L_p of part p, Z = sum_p softmax_p(L) Z_p. A sink is a part with output 0.
    """
    if len(found[0]) == 1:
        assert len(found) == 1 and sinks is None, "parts and sinks are combined by their logsumexp"
        return found[0][0]
    shares = shares_of([log for _, log in found], sinks)
    return torch.stack([z * share for (z, _), share in zip(found, shares, strict=False)]).sum(0)


def shares_of(logs: list[Tensor], sinks: Float[Tensor, "n_heads"] | None) -> Sequence[Float[Tensor, "batch n_heads query 1"]]:
    """Return each part's fraction of a query's attention weights; the fraction of the sinks is last."""
    if sinks is not None:
        logs = [*logs, sinks.to(logs[0].dtype)[:, None, None].expand_as(logs[0])]
    return torch.cat(logs, -1).softmax(-1).split(1, -1)


def _slabs(numbers: Int[Tensor, "tiles *axes"], n_tiles: int, heads: int) -> Int[Tensor, "tiles heads *axes"]:
    """Return tile indices over all sequences and heads, from tile indices over all sequences."""
    row, tile = (x[:, None] for x in (numbers // n_tiles, numbers % n_tiles))
    head = torch.arange(heads, device=numbers.device).view(1, -1, *[1] * (numbers.dim() - 1))
    return (row * heads + head) * n_tiles + tile


class _OverTiles(torch.autograd.Function):
    """Attention of query tiles with their visible key tiles, chunk by chunk; the backward pass recomputes the weights.

    The weights of a part are its own softmax times its fraction of all weights. The same holds for its gradients, with rowsum(P dP) over
    all keys, which equals rowsum(G Z).
    """

    @staticmethod
    def forward(
        ctx: Any, tiles: Tiles, lean: Lean, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *learned: Tensor
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        alone = len(tiles.parts) == 1 and sinks is None
        ctx.draws = torch.get_rng_state() if lean.dropout else None
        found = _gather_parts(tiles, lean, (q, k, v), sinks, learned)
        shares = [] if alone else shares_of([log for _, log in found], sinks)
        z = joined(found, sinks).to(v.dtype)
        ctx.tiles, ctx.lean, ctx.n_learned, ctx.sunk = tiles, lean, len(learned), sinks is not None
        ctx.save_for_backward(sinks, q, k, v, z, *learned, *shares)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if wants_graph():
            return _OverTiles.backward_twice(ctx, grad)
        q, k, v, z, *rest = (x.detach() for x in ctx.saved_tensors[1:])  # detached: their earlier graph is not part of this function
        learned, shares = [x.requires_grad_() for x in rest[: ctx.n_learned]], rest[ctx.n_learned :]
        inner = (grad * z).sum(-1, keepdim=True, dtype=_wide(grad)) if shares else None
        totals = list[Tensor]()
        with _drawn_again(ctx.draws):
            for i, part in enumerate(ctx.tiles.parts):
                behind = (grad, None) if inner is None else ((grad * shares[i]).to(grad), inner * shares[i])
                found = _gradients_of_part(part, ctx.tiles.bias, learned, ctx.lean, (q, k, v), *behind)
                totals = [total.add_(x) for total, x in zip(totals, found, strict=True)] if totals else found
        of_sinks = -(shares[-1] * inner).sum((0, 2, 3)) if ctx.sunk else None
        return None, None, *(x.to(q) for x in totals[:3]), of_sinks, *totals[3:]

    @staticmethod
    def backward_twice(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the same gradients by recording the forward pass with autograd."""
        sinks, q, k, v, _, *rest = ctx.saved_tensors

        def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *learned: Tensor) -> Tensor:
            with _drawn_again(ctx.draws):
                return joined(_gather_parts(ctx.tiles, ctx.lean, (q, k, v), sinks, learned), sinks).to(v.dtype)

        return None, None, *differentiable_gradients(attend, (q, k, v, sinks, *rest[: ctx.n_learned]), grad)


@contextmanager
def _drawn_again(draws: Tensor | None) -> Iterator[None]:
    """Restore the random state of the forward pass in the block, so that dropout drops the same weights."""
    with torch.random.fork_rng([], enabled=draws is not None):
        if draws is not None:
            torch.set_rng_state(draws)
        yield


def _gather_parts(
    tiles: Tiles, lean: Lean, sides: tuple[Tensor, Tensor, Tensor], sinks: Tensor | None, learned: Sequence[Tensor]
) -> list[tuple[Tensor, ...]]:
    """Compute the outputs of all parts of a mask, with their logsumexp if there are several parts or sinks."""
    log = len(tiles.parts) > 1 or sinks is not None
    return [_gather_part(part, tiles.bias, learned, lean, sides, log) for part in tiles.parts]


def _wide(x: Tensor) -> torch.dtype:
    """Return the dtype in which sums are accumulated."""
    return torch.promote_types(x.dtype, torch.float32)


def _gather_part(
    part: Part, bias: Bias, learned: Sequence[Tensor], lean: Lean, sides: tuple[Tensor, Tensor, Tensor], log: bool
) -> tuple[Tensor, ...]:
    """Compute the output of a part of a mask; ``log`` requests its logsumexp too."""
    q, k, v = (side.lay(x) for side, x in zip(part.sides, sides, strict=True))
    z = q.new_zeros(*q.shape[:-1], v.shape[-1])
    logs = q.new_full((*q.shape[:-1], 1), torch.finfo(_wide(q)).min, dtype=_wide(q)) if log else None  # for fully masked queries
    for chunk in part.chunks:
        (at, _, _), (queries, keys, values) = _gathered(chunk, q, k, v)
        weights = lean.weights(queries, keys, *_terms(part, chunk, bias, learned), log)
        z.flatten(0, 2)[at] = weights.gather(values)
        if logs is not None and weights.log is not None:
            logs.flatten(0, 2)[at] = weights.log
    return tuple(part.queries.take_up(x) for x in (z, logs) if x is not None)


def _gradients_of_part(
    part: Part,
    bias: Bias,
    learned: Sequence[Tensor],
    lean: Lean,
    sides: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    inner: Tensor | None,
) -> list[Tensor]:
    """Return the gradients of queries, keys, values and bias parameters that come from one part of a mask."""
    q, k, v = (side.lay(x) for side, x in zip(part.sides, sides, strict=True))
    behind, inside = part.queries.lay(grad), None if inner is None else part.queries.lay(inner)
    sums, of_learned = [torch.zeros_like(x, dtype=_wide(x)) for x in (q, k, v)], [torch.zeros_like(x) for x in learned]
    for chunk in part.chunks:
        at, (queries, keys, values) = _gathered(chunk, q, k, v)
        with torch.enable_grad():
            mask, added = _terms(part, chunk, bias, learned)
        weights = lean.weights(queries, keys, mask, None if added is None else added.detach())
        inner_here = None if inside is None else inside.flatten(0, 2)[at[0]]
        *found, of_scores = gradients(weights, queries, keys, values, behind.flatten(0, 2)[at[0]], inner_here)
        for total, slabs, x in zip(sums, at, found, strict=True):
            total.flatten(0, 2).index_add_(0, slabs.flatten(), x.reshape(-1, *total.shape[3:]).to(total.dtype))
        if learned and added is not None:
            of_bias = of_scores.sum_to_size(added.shape).to(added)
            for total, x in zip(of_learned, torch.autograd.grad(added, learned, of_bias), strict=True):
                total += x
    del q, k, v, behind, inside  # free memory for the copies below
    return [side.take_up(sums.pop(0)) for side in part.sides] + of_learned


def _gathered(chunk: Chunk, q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Gather the queries, keys and values of a chunk from the tiles of all heads; return their tile indices and the vectors."""
    at, seen = _slabs(chunk.queries, q.shape[2], q.shape[1]), _slabs(chunk.keys, k.shape[2], k.shape[1])
    numbers = (at, seen, seen)
    return numbers, [_gather(x, slabs) for x, slabs in zip((q, k, v), numbers, strict=True)]


def _gather(x: Tensor, slabs: Tensor) -> Float[Tensor, "tiles heads length width"]:
    """Gather tiles by index."""
    return x.flatten(0, 2).index_select(0, slabs.flatten()).view(*slabs.shape[:2], -1, x.shape[-1])


def _terms(part: Part, chunk: Chunk, bias: Bias, learned: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """Return a chunk's mask and bias."""
    queries, keys = (side.places.positions.flatten(0, 1) for side in (part.queries, part.keys))
    positions = queries[chunk.queries], keys[chunk.keys].flatten(1)
    seen_whole = positions[1].shape[1] - chunk.mask.shape[3]
    mask = F.pad(chunk.mask, (0, seen_whole), value=True) if chunk.mask.shape[3] else None
    return mask, bias(*positions, *learned)
