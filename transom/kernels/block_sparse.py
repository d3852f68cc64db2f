"""Block-sparse attention on a CPU: exact, forward and backward, with time and memory proportional to the visible tiles of the mask.

Sequences are split into tiles. Each query tile gathers the key tiles that any of its queries may attend to, and the explicit attention of
``kernels/attention.py`` is computed on these tiles. The backward pass recomputes the weights, so that they are not stored. If tokens that
attend to each other are far apart (strided patterns), they are first reordered to be adjacent. A union of patterns that require different
orders is computed in disjoint parts, each with its own softmax; the parts are combined by their logsumexp.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from operator import or_
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from transom.kernels.attention import CpuAttention, attention_backward, cpu_attention
from transom.kernels.second_order import differentiable_gradients
from transom.layers.attention import DEFAULT_ARGS, AttentionArgs
from transom.layers.dispatch import needs_double_backward
from transom.layers.masks.block_sparse_mask import BlockSparseMask
from transom.layers.masks.mask_rules import TILE_SIZE, AndRule, MaskRule, OrRule, TokenPositions
from transom.layers.position_encoding import PositionEncoding

MAX_SCORES_PER_CHUNK = 2**15
"""Maximum number of scores per head that a chunk of query tiles computes at once (a chunk of one tile may have more). Larger chunks take
more memory and are not faster."""

MAX_PADDED_FRACTION = 0.2
"""Maximum fraction of padding among the key tiles of a chunk. Padding gives all query tiles of a chunk the same number of key tiles."""

BiasFunction = Callable[..., Tensor | None]
"""Maps query positions, key positions and learned parameters to the bias of the scores; None for no bias."""


class TileChunk(NamedTuple):
    """Query tiles that are computed together, each with the same number of key tiles.

    Attributes:
        queries: indices of the query tiles, over all sequences of the batch.
        keys: indices of the visible key tiles of each query tile; partially masked tiles come first.
        mask: mask of the partially masked key tiles; the other key tiles are fully visible.
    """

    queries: Int[Tensor, "tiles"]
    keys: Int[Tensor, "tiles visible"]
    mask: Bool[Tensor, "tiles 1 query masked"]


class TileLayout(NamedTuple):
    """Queries or keys split into tiles.

    Attributes:
        token_positions: positions and segments of the tokens; the last token is repeated to fill the last tile.
        order: permutation of the tokens of each sequence; None for the original order.
        length: tokens per sequence.
    """

    token_positions: TokenPositions
    order: Int[Tensor, "batch length"] | None
    length: int

    @property
    def n_tiles(self) -> int:
        """Number of tiles per sequence."""
        return self.token_positions.positions.shape[1]

    def to_order(self, x: Float[Tensor, "batch heads length width"]) -> Float[Tensor, "batch heads length width"]:
        """Permute vectors into ``order``."""
        return x if self.order is None else x.gather(2, self.order[:, None, :, None].expand_as(x))

    def from_order(self, x: Float[Tensor, "batch heads length width"]) -> Float[Tensor, "batch heads length width"]:
        """Permute vectors from ``order`` back to the original order."""
        return x if self.order is None else torch.empty_like(x).scatter_(2, self.order[:, None, :, None].expand_as(x), x)

    def to_layout(self, x: Float[Tensor, "batch heads length width"]) -> Float[Tensor, "batch heads tiles tile width"]:
        """Reorder vectors and split them into tiles; the last tile is padded with zeros."""
        x = self.to_order(x)
        n_pad = -self.length % TILE_SIZE
        if n_pad:
            x = torch.cat([x, x.new_zeros(*x.shape[:2], n_pad, x.shape[3])], 2)
        return x.unflatten(2, (-1, TILE_SIZE)).contiguous()

    def token_indices(self, tiles: Int[Tensor, "*axes"]) -> Int[Tensor, "*axes tile"]:
        """Return the index of each token of these tiles, which count over all sequences, in its sequence; padding has any index."""
        indices = (tiles % self.n_tiles * TILE_SIZE)[..., None] + torch.arange(TILE_SIZE, device=tiles.device)
        if self.order is None:
            return indices
        return self.order[(tiles // self.n_tiles)[..., None], indices.clamp_max(self.length - 1)]

    def from_layout(self, x: Float[Tensor, "batch heads tiles tile width"]) -> Float[Tensor, "batch heads length width"]:
        """Join tiles to sequences in the original order; inverse of ``to_layout``."""
        return self.from_order(x.flatten(2, 3)[:, :, : self.length])


class MaskPart(NamedTuple):
    """A part of a mask: how its queries and keys are ordered and split into tiles, and its chunks."""

    queries: TileLayout
    keys: TileLayout
    chunks: list[TileChunk]

    @property
    def layouts(self) -> tuple[TileLayout, TileLayout, TileLayout]:
        """Layouts of queries, keys and values."""
        return self.queries, self.keys, self.keys

    @property
    def pairs(self) -> int:
        """Number of query-key pairs computed per head, those of padding tiles included."""
        return sum(chunk.keys.numel() for chunk in self.chunks) * TILE_SIZE**2


def split_rule(rule: MaskRule) -> list[tuple[MaskRule, MaskRule | None]]:
    """Split a rule into disjoint rules; return each with the rule whose ``sort_key`` reorders its tokens, or None for the original order.

    (a | b) & c becomes a & c and b & c & ~a if a and b require different orders.
    """
    if isinstance(rule, OrRule):
        together = dict[MaskRule | None, MaskRule]()
        for part, order in split_rule(rule.left) + split_rule(rule.right):
            together[order] = together[order] | part if order in together else part
        orders = sorted(together, key=lambda order: order is not None)
        earlier = [reduce(or_, (together[order] for order in orders[:i])) for i in range(1, len(orders))]
        rest = [together[order] & ~covered for order, covered in zip(orders[1:], earlier, strict=True)]
        return list(zip([together[orders[0]], *rest], orders, strict=True))
    if isinstance(rule, AndRule):
        for inner, outer in ((rule.left, rule.right), (rule.right, rule.left)):
            parts = split_rule(inner)
            if len(parts) > 1 or parts[0][1] is not None:
                return [(outer & part, order) for part, order in parts]
    return [(rule, rule if rule.reordered else None)]


def plan_parts(rule: MaskRule, queries: TokenPositions, keys: TokenPositions) -> list[MaskPart]:
    """Split a mask into parts and find the visible tiles of each; parts without visible tiles are dropped.

    Args:
        rule: mask rule.
        queries: positions of the queries.
        keys: positions of the keys.
    """
    parts = [_plan_part(each, build_layout(queries, order), build_layout(keys, order)) for each, order in split_rule(rule)]
    return [part for part in parts if part.chunks]


def build_layout(token_positions: TokenPositions, by: MaskRule | None, tile: int = TILE_SIZE) -> TileLayout:
    """Split token positions into tiles of ``tile`` tokens; first sort the tokens of each segment by ``by.sort_key`` if ``by`` is given."""
    shape = torch.broadcast_shapes(*(x.shape for x in token_positions if x is not None))
    token_positions = token_positions.map(lambda x: x.expand(shape))
    length, order = token_positions.positions.shape[1], None
    if by is not None:
        group = by.sort_key(token_positions)
        order = group.argsort(dim=1, stable=True)
        order = order.gather(1, token_positions.segments.gather(1, order).argsort(dim=1, stable=True))
        token_positions = token_positions.map(lambda x: x.gather(1, order))
    n_pad = -length % tile
    tiled = token_positions.map(lambda x: torch.cat([x, x[:, -1:].expand(-1, n_pad)], 1).unflatten(1, (-1, tile)))
    return TileLayout(tiled, order, length)


def _plan_part(rule: MaskRule, queries: TileLayout, keys: TileLayout) -> MaskPart:
    any_visible, all_visible = (
        x.clone() for x in torch.broadcast_tensors(*rule.classify_tile(queries.token_positions, keys.token_positions))
    )
    if keys.length % TILE_SIZE:
        all_visible[:, :, -1] = False
    rank = (any_visible.long() + (any_visible & all_visible)).flatten(0, 1)  # 0 for none, 1 for some, 2 for all
    rank, visible_tiles = rank.sort(dim=-1, stable=True)  # visible tiles last, fully visible ones after partially visible ones
    counts = (rank > 0).sum(-1)
    by_count = counts.argsort(stable=True)
    by_count = by_count[counts[by_count] > 0]
    found = counts[by_count].tolist()
    chunks = []
    for first, last in _chunk_bounds(found):
        tiles, width = by_count[first:last], found[last - 1]
        chunks.append(_build_chunk(rule, queries, keys, tiles, rank[tiles, -width:], visible_tiles[tiles, -width:]))
    return MaskPart(queries, keys, chunks)


def _build_chunk(rule: MaskRule, queries: TileLayout, keys: TileLayout, tiles: Tensor, rank: Tensor, visible_tiles: Tensor) -> TileChunk:
    """Build a chunk from query tiles, the visible key tiles of each, and their ``rank``: 1 if partially visible, 2 if fully visible."""
    row = (tiles // queries.n_tiles)[:, None]
    n_masked = int((rank < 2).sum(-1).max())
    masked = visible_tiles[:, :n_masked]
    query = queries.token_positions.map(lambda x: x.flatten(0, 1)[tiles][:, :, None])
    key = keys.token_positions.map(lambda x: x[row, masked].flatten(1)[:, None])
    in_range = masked[:, :, None] * TILE_SIZE + torch.arange(TILE_SIZE, device=tiles.device) < keys.length
    in_range &= rank[:, :n_masked, None] > 0
    mask = rule.mask_mod(query, key) & in_range.flatten(1)[:, None]
    return TileChunk(tiles, row * keys.n_tiles + visible_tiles, mask[:, None])


def _chunk_bounds(counts: list[int]) -> Iterator[tuple[int, int]]:
    """Split ascending counts of key tiles into runs that fit into one chunk; yield (first, last) of each run, ``last`` exclusive."""
    first, total = 0, 0
    for last, count in enumerate(counts):
        pairs = count * (last + 1 - first)
        if last > first and (pairs * TILE_SIZE**2 > MAX_SCORES_PER_CHUNK or pairs - total - count > MAX_PADDED_FRACTION * pairs):
            yield first, last
            first, total = last, 0
        total += count
    if counts:
        yield first, len(counts)


class TiledMask(BlockSparseMask):
    """A block-sparse mask for a CPU; its parts are of type ``MaskPart``."""

    def bias(self, queries: Tensor, keys: Tensor, *learned: Tensor) -> Tensor | None:
        """Return the bias of the scores between query and key positions; None without a position bias."""
        return None if self.position is None else self.position.bias(queries, keys, *learned)


def plan_tiled_mask(rule: MaskRule, queries: TokenPositions, keys: TokenPositions, position: PositionEncoding | None = None) -> TiledMask:
    """Find the visible tiles of a mask, for attention on a CPU.

    Args:
        rule: mask rule.
        queries: positions of the queries.
        keys: positions of the keys.
        position: position encoding whose bias is added to the scores; None for no bias.
    """
    return TiledMask(plan_parts(rule, queries, keys), rule, queries, keys, position)


def can_plan_on_cpu(rule: MaskRule, queries: TokenPositions, keys: TokenPositions, position: PositionEncoding | None) -> bool:
    """Return whether ``plan_tiled_mask`` applies: the tokens are on a CPU."""
    return queries.segments.device.type == "cpu"


def can_use_tiled_attention(q: Tensor, k: Tensor, v: Tensor, tiles: BlockSparseMask, args: AttentionArgs = DEFAULT_ARGS) -> bool:
    """Return whether ``tiled_attention`` applies: the mask comes from ``plan_tiled_mask``, and no plugin computes the scores."""
    return isinstance(tiles, TiledMask) and args.score is None


def tiled_attention(
    q: Float[Tensor, "batch n_heads query d_head"],
    k: Float[Tensor, "batch kv_heads key d_head"],
    v: Float[Tensor, "batch kv_heads key d_value"],
    tiles: BlockSparseMask,
    args: AttentionArgs = DEFAULT_ARGS,
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Compute attention over the visible tiles of a mask; equal to ``explicit_attention`` with the dense mask and bias."""
    assert tiles.parts, "at least one tile is visible"
    learned = () if tiles.position is None else tiles.position.bias_parameters
    z: Tensor = _TiledAttention.apply(tiles, cpu_attention(args), q, k, v, args.sinks, *learned)  # type: ignore[no-untyped-call]
    return z


def combine_parts(
    found: Sequence[tuple[Tensor, ...]], sinks: Float[Tensor, "n_heads"] | None
) -> Float[Tensor, "batch n_heads query d_value"]:
    """Combine the outputs of the parts of a mask: Z = sum_p softmax_p(L) Z_p, with output Z_p and logsumexp L_p of part p.

    ``found`` holds (Z_p, L_p) per part, or (Z,) for a single part without sinks. A sink is a further part with output 0.
    """
    if len(found[0]) == 1:
        assert len(found) == 1 and sinks is None, "parts and sinks are combined by their logsumexp"
        return found[0][0]
    part_fractions = part_weights([lse for _, lse in found], sinks)
    return torch.stack([z * fraction for (z, _), fraction in zip(found, part_fractions, strict=False)]).sum(0)


def part_weights(lses: list[Tensor], sinks: Float[Tensor, "n_heads"] | None) -> Sequence[Float[Tensor, "batch n_heads query 1"]]:
    """Return the fraction of each query's attention weights that every part has; the fraction of the sinks, if any, is last."""
    if sinks is not None:
        lses = [*lses, sinks.to(lses[0].dtype)[:, None, None].expand_as(lses[0])]
    return torch.cat(lses, -1).softmax(-1).split(1, -1)


def _indices_per_head(tile_indices: Int[Tensor, "tiles *axes"], n_tiles: int, heads: int) -> Int[Tensor, "tiles heads *axes"]:
    """Convert indices of the tiles of all sequences to indices of the tiles of all heads of all sequences."""
    row, tile = (x[:, None] for x in (tile_indices // n_tiles, tile_indices % n_tiles))
    head = torch.arange(heads, device=tile_indices.device).view(1, -1, *[1] * (tile_indices.dim() - 1))
    return (row * heads + head) * n_tiles + tile


class _TiledAttention(torch.autograd.Function):
    """Attention of query tiles with their visible key tiles, chunk by chunk; the backward pass recomputes the weights.

    The attention weights of a part are the softmax within the part times the part's fraction of all weights. So the gradients of a part are
    computed from G and rowsum(P dP) times this fraction, where rowsum(P dP) is taken over all keys and equals rowsum(G Z).
    """

    @staticmethod
    def forward(
        ctx: Any, tiles: TiledMask, cpu_attention: CpuAttention, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *learned: Tensor
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        single_part = len(tiles.parts) == 1 and sinks is None
        ctx.rng_state = torch.get_rng_state() if cpu_attention.dropout and cpu_attention.dropout_masks is None else None
        found = _attend_parts(tiles, cpu_attention, (q, k, v), sinks, learned)
        part_fractions = [] if single_part else part_weights([lse for _, lse in found], sinks)
        z = combine_parts(found, sinks).to(v.dtype)
        ctx.tiles, ctx.cpu_attention, ctx.n_learned, ctx.has_sinks = tiles, cpu_attention, len(learned), sinks is not None
        ctx.save_for_backward(sinks, q, k, v, z, *learned, *part_fractions)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if needs_double_backward():
            return _TiledAttention.differentiable_backward(ctx, grad)
        q, k, v, z, *rest = (x.detach() for x in ctx.saved_tensors[1:])  # detached: their earlier graph is not part of this function
        learned, part_fractions = [x.requires_grad_() for x in rest[: ctx.n_learned]], rest[ctx.n_learned :]
        delta = (grad * z).sum(-1, keepdim=True, dtype=_accumulation_dtype(grad)) if part_fractions else None
        totals = list[Tensor]()
        with _replayed_rng(ctx.rng_state):
            for i, part in enumerate(ctx.tiles.parts):
                part_grads = (grad, None) if delta is None else ((grad * part_fractions[i]).to(grad), delta * part_fractions[i])
                found = _part_backward(part, ctx.tiles.bias, learned, ctx.cpu_attention, (q, k, v), *part_grads)
                totals = [total.add_(x) for total, x in zip(totals, found, strict=True)] if totals else found
        grad_sinks = -(part_fractions[-1] * delta).sum((0, 2, 3)) if ctx.has_sinks else None
        return None, None, *(x.to(q) for x in totals[:3]), grad_sinks, *totals[3:]

    @staticmethod
    def differentiable_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of ``backward`` such that they can be differentiated again: autograd records the forward pass."""
        sinks, q, k, v, _, *rest = ctx.saved_tensors

        def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, *learned: Tensor) -> Tensor:
            with _replayed_rng(ctx.rng_state):
                return combine_parts(_attend_parts(ctx.tiles, ctx.cpu_attention, (q, k, v), sinks, learned), sinks).to(v.dtype)

        return None, None, *differentiable_gradients(attend, (q, k, v, sinks, *rest[: ctx.n_learned]), grad)


@contextmanager
def _replayed_rng(rng_state: Tensor | None) -> Iterator[None]:
    """Within the ``with`` block, restore the random state of the forward pass, so that dropout drops the same weights."""
    with torch.random.fork_rng([], enabled=rng_state is not None):
        if rng_state is not None:
            torch.set_rng_state(rng_state)
        yield


def _attend_parts(
    tiles: TiledMask, cpu_attention: CpuAttention, qkv: tuple[Tensor, Tensor, Tensor], sinks: Tensor | None, learned: Sequence[Tensor]
) -> list[tuple[Tensor, ...]]:
    """Compute (output, logsumexp) of each part of a mask, or (output,) for a single part without sinks."""
    return_lse = len(tiles.parts) > 1 or sinks is not None
    return [_attend_part(part, tiles.bias, learned, cpu_attention, qkv, return_lse) for part in tiles.parts]


def _accumulation_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which sums are accumulated."""
    return torch.promote_types(x.dtype, torch.float32)


def _attend_part(
    part: MaskPart,
    bias: BiasFunction,
    learned: Sequence[Tensor],
    cpu_attention: CpuAttention,
    qkv: tuple[Tensor, Tensor, Tensor],
    return_lse: bool,
) -> tuple[Tensor, ...]:
    """Compute the output of one part of a mask; with ``return_lse`` also the logsumexp of its scores."""
    q, k, v = (layout.to_layout(x) for layout, x in zip(part.layouts, qkv, strict=True))
    z = q.new_zeros(*q.shape[:-1], v.shape[-1])
    lses = (
        q.new_full((*q.shape[:-1], 1), torch.finfo(_accumulation_dtype(q)).min, dtype=_accumulation_dtype(q)) if return_lse else None
    )  # for fully masked queries
    for chunk in part.chunks:
        (query_tiles, _, _), (queries, keys, values) = _gather_chunk(chunk, q, k, v)
        mask, added = _mask_and_bias(part, chunk, bias, learned)
        weights = cpu_attention.attention_weights(queries, keys, mask, added, return_lse, _mask_drawer(part, chunk, cpu_attention))
        z.flatten(0, 2)[query_tiles] = weights.weighted_values(values)
        if lses is not None and weights.logsumexp is not None:
            lses.flatten(0, 2)[query_tiles] = weights.logsumexp
    return tuple(part.queries.from_layout(x) for x in (z, lses) if x is not None)


def _part_backward(
    part: MaskPart,
    bias: BiasFunction,
    learned: Sequence[Tensor],
    cpu_attention: CpuAttention,
    qkv: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    delta: Tensor | None,
) -> list[Tensor]:
    """Return the gradients of queries, keys, values and bias parameters that come from one part of a mask."""
    q, k, v = (layout.to_layout(x) for layout, x in zip(part.layouts, qkv, strict=True))
    grad_tiles, delta_tiles = part.queries.to_layout(grad), None if delta is None else part.queries.to_layout(delta)
    sums, grad_learned = [torch.zeros_like(x, dtype=_accumulation_dtype(x)) for x in (q, k, v)], [torch.zeros_like(x) for x in learned]
    for chunk in part.chunks:
        query_tiles, (queries, keys, values) = _gather_chunk(chunk, q, k, v)
        with torch.enable_grad():
            mask, added = _mask_and_bias(part, chunk, bias, learned)
        bias_of_chunk, draw_mask = None if added is None else added.detach(), _mask_drawer(part, chunk, cpu_attention)
        weights = cpu_attention.attention_weights(queries, keys, mask, bias_of_chunk, draw_mask=draw_mask)
        chunk_delta = None if delta_tiles is None else delta_tiles.flatten(0, 2)[query_tiles[0]]
        *found, grad_scores = attention_backward(weights, queries, keys, values, grad_tiles.flatten(0, 2)[query_tiles[0]], chunk_delta)
        for total, indices, x in zip(sums, query_tiles, found, strict=True):
            total.flatten(0, 2).index_add_(0, indices.flatten(), x.reshape(-1, *total.shape[3:]).to(total.dtype))
        if learned and added is not None:
            grad_bias = grad_scores.sum_to_size(added.shape).to(added)
            for total, x in zip(grad_learned, torch.autograd.grad(added, learned, grad_bias), strict=True):
                total += x
    del q, k, v, grad_tiles, delta_tiles  # free memory for the copies below
    return [layout.from_layout(sums.pop(0)) for layout in part.layouts] + grad_learned


def _gather_chunk(chunk: TileChunk, q: Tensor, k: Tensor, v: Tensor) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Gather the queries, keys and values of a chunk from the tiles of all heads; return the tile indices and the gathered tensors."""
    query_tiles, visible_tiles = (
        _indices_per_head(chunk.queries, q.shape[2], q.shape[1]),
        _indices_per_head(chunk.keys, k.shape[2], k.shape[1]),
    )
    tile_indices = (query_tiles, visible_tiles, visible_tiles)
    return tile_indices, [_gather_tiles(x, indices) for x, indices in zip((q, k, v), tile_indices, strict=True)]


def _mask_drawer(part: MaskPart, chunk: TileChunk, cpu_attention: CpuAttention) -> Callable[[Tensor, float], Tensor] | None:
    """Return the function that computes the keyed dropout mask of a chunk, equal to that of the whole weights; None without keys."""
    if cpu_attention.dropout_masks is None:
        return None
    return partial(
        cpu_attention.dropout_masks.draw_at,
        rows=chunk.queries // part.queries.n_tiles,
        queries=part.queries.token_indices(chunk.queries),
        keys=part.keys.token_indices(chunk.keys).flatten(1),
        ordered=part.keys.order is None,
    )


def _gather_tiles(x: Tensor, indices: Tensor) -> Float[Tensor, "tiles heads length width"]:
    """Gather the tiles of all heads at ``indices``, which count over all sequences and heads."""
    return x.flatten(0, 2).index_select(0, indices.flatten()).view(*indices.shape[:2], -1, x.shape[-1])


def _mask_and_bias(part: MaskPart, chunk: TileChunk, bias: BiasFunction, learned: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """Return the mask and the bias of a chunk; None for each that is not needed."""
    queries, keys = (layout.token_positions.positions.flatten(0, 1) for layout in (part.queries, part.keys))
    positions = queries[chunk.queries], keys[chunk.keys].flatten(1)
    n_unmasked = positions[1].shape[1] - chunk.mask.shape[3]
    mask = F.pad(chunk.mask, (0, n_unmasked), value=True) if chunk.mask.shape[3] else None
    return mask, bias(*positions, *learned)
