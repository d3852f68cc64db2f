"""Attention over the visible tiles of a mask only: exact, forward and back, in time and memory that grow with what is seen.

Tokens are cut into tiles, each tile of queries gathers the tiles of keys that any of its queries may see, and attention is computed among
them by the same functions as elsewhere; backward it is computed again, so that no weights are kept. Where tokens that see each other lie
in groups far apart (strided patterns), they are first laid side by side. A union of patterns that want different orders is computed in
disjoint parts, each a softmax of its own, which are joined by the sums of their exponentials.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from transom.layers.rule import TILE, And, Or, Places, Rule

PAIRS_AT_ONCE = 2**17
"""Most scores a head that are held at once, unless one tile of queries has more: what the processor's cache holds is fastest."""

WASTE = 0.2
"""Most of a chunk's keys that may be filled up, so that its tiles of queries have equally many."""

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None], tuple[Tensor, ...]]
"""Attends with queries, keys, values, mask and bias; gives what each query gathered and, if parts are to be joined, the logarithm of its
sum of exponentials, (batch, n_heads, query, 1)."""


class Chunk(NamedTuple):
    """Tiles of queries that are worked on together, each with as many tiles of keys.

    Attributes:
        queries: numbers of the tiles, counted over all rows.
        keys: numbers of the tiles of keys that each sees: those to be masked first.
        mask: of those to be masked; the others are seen whole.
    """

    queries: Int[Tensor, "tiles"]
    keys: Int[Tensor, "tiles seen"]
    mask: Bool[Tensor, "tiles 1 query masked"]


class Side(NamedTuple):
    """Queries or keys in tiles.

    Attributes:
        places: where the tokens stand; the last one is repeated to fill its tile.
        order: in which the tokens of each row are laid; None as they are.
        length: tokens a row.
    """

    places: Places
    order: Int[Tensor, "batch length"] | None
    length: int

    @property
    def n_tiles(self) -> int:
        """Tiles a row."""
        return self.places.positions.shape[1]

    def arrange(self, x: Float[Tensor, "batch heads length width"]) -> Float[Tensor, "batch heads length width"]:
        """Put vectors into the order."""
        return x if self.order is None else x.gather(2, self.order[:, None, :, None].expand_as(x))

    def put_back(self, x: Float[Tensor, "batch heads length width"]) -> Float[Tensor, "batch heads length width"]:
        """Put vectors back from the order."""
        return x if self.order is None else torch.empty_like(x).scatter(2, self.order[:, None, :, None].expand_as(x), x)

    def lay(self, x: Float[Tensor, "batch heads length width"]) -> Float[Tensor, "batch heads tiles tile width"]:
        """Cut vectors into tiles."""
        x = self.arrange(x)
        missing = -self.length % TILE
        if missing:
            x = torch.cat([x, x.new_zeros(*x.shape[:2], missing, x.shape[3])], 2)
        return x.unflatten(2, (-1, TILE)).contiguous()

    def take_up(self, x: Float[Tensor, "batch heads tiles tile width"]) -> Float[Tensor, "batch heads length width"]:
        """Put tiles together again."""
        return self.put_back(x.flatten(2, 3)[:, :, : self.length])


class Part(NamedTuple):
    """A part of a mask, and what is to be done for it."""

    queries: Side
    keys: Side
    chunks: list[Chunk]

    @property
    def pairs(self) -> int:
        """Scores that are computed a head."""
        return sum(chunk.keys.numel() for chunk in self.chunks) * TILE**2


def parts_of(rule: Rule) -> list[tuple[Rule, Rule | None]]:
    """Split a rule into disjoint rules, each with the rule whose groups its tokens are to be laid in (None: as they are).

    (a | b) & c becomes a & c and b & c & ~a, where a and b want different orders.
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
    """Find the visible tiles of a mask; parts of it that see nothing are left out.

    Args:
        rule: the mask.
        queries: where the queries stand.
        keys: where the keys stand.
    """
    parts = [_part(each, side_of(queries, order), side_of(keys, order)) for each, order in parts_of(rule)]
    return [part for part in parts if part.chunks]


def visible_pairs(parts: Sequence[Part]) -> int:
    """Count the pairs of a query and a key that a mask lets see, from its parts."""
    pairs = 0
    for queries, _, chunks in parts:
        for chunk in chunks:
            real = (chunk.queries % queries.n_tiles)[:, None] * TILE + torch.arange(TILE, device=chunk.queries.device) < queries.length
            whole = chunk.keys.shape[1] * TILE - chunk.mask.shape[3]
            pairs += int((chunk.mask & real[:, None, :, None]).sum()) + int(real.sum()) * whole
    return pairs


def side_of(places: Places, by: Rule | None, tile: int = TILE) -> Side:
    """Cut places into tiles, those of each group of ``by`` side by side."""
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
    rank, seen = rank.sort(dim=-1, stable=True)  # those that are seen last, whole ones behind the others
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
    """Put together tiles of queries, the tiles of keys that they see, and the mask of those that are not seen whole."""
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
    """Cut ascending numbers of keys into runs that fit into the memory and differ little."""
    first, total = 0, 0
    for last, count in enumerate(counts):
        pairs = count * (last + 1 - first)
        if last > first and (pairs * TILE**2 > PAIRS_AT_ONCE or pairs - total - count > WASTE * pairs):
            yield first, last
            first, total = last, 0
        total += count
    if counts:
        yield first, len(counts)


class Tiles(NamedTuple):
    """A mask by its visible tiles, and what is added to the scores there.

    Attributes:
        parts: disjoint parts of the mask.
        bias: gives what is added to the scores between positions, from what is learned.
        learned: what the bias is learned from.
    """

    parts: list[Part]
    bias: Callable[..., Tensor | None] = lambda *_: None
    learned: Sequence[Tensor] = ()

    @property
    def pairs(self) -> int:
        """Scores that are computed a head."""
        return sum(part.pairs for part in self.parts)


def over_tiles(
    attend: Attend,
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    tiles: Tiles,
    sinks: Float[Tensor, "n_heads"] | None = None,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Attend over the visible tiles."""
    assert tiles.parts, "something is seen"
    found = []
    for part in tiles.parts:
        sides = part.queries.lay(q), part.keys.lay(k), part.keys.lay(v)
        gathered: tuple[Tensor, ...] = _Gathered.apply(attend, part, tiles.bias, *sides, *tiles.learned)  # type: ignore[no-untyped-call]
        found.append(tuple(part.queries.take_up(x) for x in gathered))
    return joined(found, sinks).to(v.dtype)


def joined(found: Sequence[tuple[Tensor, ...]], sinks: Float[Tensor, "n_heads"] | None) -> Float[Tensor, "batch n_heads query d_value"]:
    """Join what the parts of a mask gave, each with the logarithm of its sum of exponentials, which one alone need not have.

    With Z_p and L_p what part p alone gives and that logarithm, Z = sum_p softmax_p(L) Z_p. A sink is a part that gives 0.
    """
    if len(found[0]) == 1:
        assert len(found) == 1 and sinks is None, "parts and sinks are joined by their sums of exponentials"
        return found[0][0]
    logs = [log for _, log in found]
    if sinks is not None:
        logs.append(sinks.to(logs[0].dtype)[:, None, None].expand_as(logs[0]))
    shares = torch.cat(logs, -1).softmax(-1)
    return torch.stack([z * shares[..., i : i + 1] for i, (z, _) in enumerate(found)]).sum(0)


def _slabs(numbers: Int[Tensor, "tiles *axes"], n_tiles: int, heads: int) -> Int[Tensor, "tiles heads *axes"]:
    """Number the tiles of each head, from the numbers of the tiles of each row."""
    row, tile = (x[:, None] for x in (numbers // n_tiles, numbers % n_tiles))
    head = torch.arange(heads, device=numbers.device).view(1, -1, *[1] * (numbers.dim() - 1))
    return (row * heads + head) * n_tiles + tile


class _Gathered(torch.autograd.Function):
    """Attention of tiles of queries with the tiles of keys that each sees, chunk by chunk; backward each chunk is computed again."""

    @staticmethod
    def forward(ctx: Any, attend: Attend, part: Part, bias: Any, q: Tensor, k: Tensor, v: Tensor, *learned: Tensor) -> tuple[Tensor, ...]:
        ctx.attend, ctx.part, ctx.bias = attend, part, bias
        ctx.save_for_backward(q, k, v, *learned)
        ctx.draws = torch.get_rng_state()
        found: list[Tensor] = []
        for chunk in part.chunks:
            at, seen = _slabs_of(chunk, q, k)
            gathered = attend(_gather(q, at), _gather(k, seen), _gather(v, seen), *_terms(part, chunk, bias, learned))
            for i, x in enumerate(gathered):
                if len(found) == i:  # what sees nothing gathers nothing, with a sum of exponentials of 0
                    found.append(x.new_full((*q.shape[:-1], x.shape[-1]), 0.0 if i == 0 else torch.finfo(x.dtype).min))
                found[i].flatten(0, 2)[at] = x
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, *learned = (x.detach() for x in ctx.saved_tensors)  # what lies before them is not this function's
        sides = (q, k, v)
        sums = [torch.zeros_like(x, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (*sides, *learned)]
        learned = [x.requires_grad_() for x in learned]
        with torch.random.fork_rng([]), torch.enable_grad():
            torch.set_rng_state(ctx.draws)  # what was dropped is dropped again
            for chunk in ctx.part.chunks:
                at, seen = _slabs_of(chunk, q, k)
                tiles = [_gather(x, slabs).requires_grad_() for x, slabs in zip(sides, (at, seen, seen), strict=True)]
                found = ctx.attend(*tiles, *_terms(ctx.part, chunk, ctx.bias, learned))
                behind = [grad.flatten(0, 2)[at] for grad in grads]
                parts = torch.autograd.grad(found, [*tiles, *learned], behind, allow_unused=True)
                for total, slabs, x in zip(sums[:3], (at, seen, seen), parts[:3], strict=True):
                    total.flatten(0, 2).index_add_(0, slabs.flatten(), x.reshape(-1, *total.shape[3:]).to(total.dtype))
                for total, x in zip(sums[3:], parts[3:], strict=True):
                    if x is not None:
                        total += x
        return None, None, None, *(total.to(x.dtype) for total, x in zip(sums, (*sides, *learned), strict=True))


def _slabs_of(chunk: Chunk, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Say where the queries and the keys of a chunk are to be found among the tiles of all heads."""
    return _slabs(chunk.queries, q.shape[2], q.shape[1]), _slabs(chunk.keys, k.shape[2], k.shape[1])


def _gather(x: Tensor, slabs: Tensor) -> Float[Tensor, "tiles heads length width"]:
    """Gather tiles."""
    return x.flatten(0, 2).index_select(0, slabs.flatten()).view(*slabs.shape[:2], -1, x.shape[-1])


def _terms(part: Part, chunk: Chunk, bias: Callable[..., Tensor | None], learned: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """Give a chunk's mask and bias."""
    queries, keys = (side.places.positions.flatten(0, 1) for side in (part.queries, part.keys))
    positions = queries[chunk.queries], keys[chunk.keys].flatten(1)
    seen_whole = positions[1].shape[1] - chunk.mask.shape[3]
    mask = F.pad(chunk.mask, (0, seen_whole), value=True) if chunk.mask.shape[3] else None
    return mask, bias(*positions, *learned)
