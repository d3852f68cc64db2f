"""Masks between the queries of one rank and the keys of all: the visible tiles per rank, and an order of tokens that balances the work.

Tokens are split into chunks of successive ones. Under a causal mask attention exchanges them, so that each rank has some from the beginning
and some from the end; the other layers see chunks only.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from transom.layers.context import AttentionContext
from transom.layers.masks.block_sparse_mask import BlockSparseMask, build_block_sparse_mask
from transom.layers.masks.mask_rules import FULL, TokenPositions
from transom.parallel.axes.sequence import chunk_range

TILE_SIZE = 512
"""Queries and keys per tile."""


class Tile(NamedTuple):
    """A tile of one rank's queries and another rank's keys.

    Attributes:
        queries: range among the rank's queries.
        keys: range among the keys of the chunk.
        masked: whether some pair of the tile is invisible.
    """

    queries: slice
    keys: slice
    masked: bool


@dataclass(frozen=True)
class ChunkMask(BlockSparseMask):
    """Mask of the queries of one rank and the keys of all.

    Attributes:
        rank: rank of the queries among those that share the sequence.
        n_ranks: number of these ranks.
        n_queries: number of queries of all ranks.
        n_rows: batch size.
        zigzag: whether the tokens of each rank are those of ``zigzag_indices`` instead of a chunk.
    """

    rank: int = 0
    n_ranks: int = 1
    n_queries: int = 0
    n_rows: int = 1
    zigzag: bool = False

    @property
    def n_keys(self) -> int:
        """Number of keys of all ranks."""
        return self.keys.segments.shape[1]

    def indices(self, length: int, owner: int) -> Int[Tensor, "tokens"]:
        """Return the indices of the tokens of one rank, of ``length`` queries or keys."""
        if self.zigzag:
            return zigzag_indices(length, owner, self.n_ranks)
        return torch.arange(*chunk_range(length, owner, self.n_ranks))

    @cached_property
    def query_indices(self) -> Int[Tensor, "query"]:
        """Indices of this rank's queries."""
        return self.indices(self.n_queries, self.rank).to(self.keys.segments.device)

    @cached_property
    def key_indices(self) -> list[Int[Tensor, "key"]]:
        """Indices of the keys of each rank."""
        return [self.indices(self.n_keys, owner).to(self.keys.segments.device) for owner in range(self.n_ranks)]

    @cached_property
    def key_chunks(self) -> list[TokenPositions]:
        """Keys of each rank."""
        return [self.keys.map(partial(torch.index_select, dim=1, index=index)) for index in self.key_indices]

    @cached_property
    def balanced(self) -> "BalancedMask | None":
        """The same mask for tokens in zigzag order, and the exchange of tokens; None unless the mask is triangular."""
        ends = TokenPositions.single_sequence(self.n_keys).select([0, -1])
        (_, later), (earlier, _) = self.rule.dense(ends, ends)[0, 0].tolist()
        if later or not earlier:
            return None
        ordered = replace(self, zigzag=True)
        there = Redistribution.between(self, ordered)
        ordered = replace(ordered, queries=ordered.key_chunks[self.rank])
        return BalancedMask(ordered, there, there.reverse)

    @cached_property
    def tiles(self) -> list[list[Tile]]:
        """Tiles with a visible pair, for the keys of each rank."""
        return [visible_tiles(self, keys) for keys in self.key_chunks]

    @cached_property
    def gathered(self) -> AttentionContext:
        """Mask and bias of attention to gathered keys, block-sparse where that is faster."""
        if self.rule == FULL:
            return AttentionContext(bias=self.dense()[1])
        n_rows = self.n_rows if len(self.keys.segments) == 1 else 1
        block_mask = build_block_sparse_mask(self.rule, self.queries, self.keys, self.position, n_rows)
        return AttentionContext(block_mask=block_mask) if block_mask else AttentionContext(None, None, *self.dense())


def zigzag_indices(length: int, index: int, n: int) -> Int[Tensor, "tokens"]:
    """Return the tokens of rank ``index`` of ``n``: a chunk from the beginning and one from the end of the sequence.

    Under a causal mask later tokens have more keys. With chunks of successive tokens the last rank would compute as much in each turn of
    the ring as without a mask; in zigzag order all ranks compute half of that (Dubey et al. 2024, section 3.3.2).

    >>> [zigzag_indices(7, index, 2).tolist() for index in range(2)]
    [[0, 1, 5, 6], [2, 3, 4]]
    """
    sizes = [end - start for start, end in (chunk_range(length, each, n) for each in range(index + 1))]
    first, last = sum((size + 1) // 2 for size in sizes[:-1]), length - sum(size // 2 for size in sizes[:-1])
    size = sizes[-1]
    return torch.cat([torch.arange(first, first + (size + 1) // 2), torch.arange(last - size // 2, last)])


class Redistribution(NamedTuple):
    """Exchange of tokens between two ways to share them among ranks.

    Attributes:
        send_order: indices of this rank's tokens, by the rank that gets them.
        n_sent: number of tokens for each rank.
        receive_order: index of each received token among this rank's new tokens.
        n_received: number of tokens from each rank.
    """

    send_order: Int[Tensor, "tokens"]
    n_sent: list[int]
    receive_order: Int[Tensor, "tokens"]
    n_received: list[int]

    @classmethod
    def between(cls, before: ChunkMask, after: ChunkMask) -> "Redistribution":
        """Return the exchange after which each rank has the tokens of ``after`` instead of those of ``before``."""
        length, n, device = before.n_keys, before.n_ranks, before.keys.segments.device
        owners = []
        for mask in (before, after):
            owner = torch.empty(length, dtype=torch.long)
            for rank in range(n):
                owner[mask.indices(length, rank)] = rank
            owners.append(owner)
        to, of = owners[1][before.indices(length, before.rank)], owners[0][after.indices(length, after.rank)]
        orders = [x.argsort(stable=True).to(device) for x in (to, of)]
        return cls(orders[0], to.bincount(minlength=n).tolist(), orders[1], of.bincount(minlength=n).tolist())

    @property
    def reverse(self) -> "Redistribution":
        """The exchange that undoes this one."""
        return Redistribution(self.receive_order, self.n_received, self.send_order, self.n_sent)

    def run(self, x: Float[Tensor, "batch heads before width"], group: ProcessGroup) -> Float[Tensor, "batch heads after width"]:
        """Exchange tokens, without a gradient."""
        sent = x.movedim(2, 0).index_select(0, self.send_order)
        received = sent.new_empty(sum(self.n_received), *sent.shape[1:])
        distributed.all_to_all_single(received, sent, self.n_received, self.n_sent, group=group)
        return torch.empty_like(received).index_copy_(0, self.receive_order, received).movedim(0, 2)


class BalancedMask(NamedTuple):
    """A triangular mask, by which all ranks compute equally much.

    Attributes:
        mask: mask of the rank's queries in zigzag order.
        there: exchange from chunks to zigzag order.
        back: exchange from zigzag order to chunks.
    """

    mask: ChunkMask
    there: Redistribution
    back: Redistribution


def visible_tiles(mask: BlockSparseMask, keys: TokenPositions) -> list[Tile]:
    """Return the tiles of the mask's queries and ``keys`` in which a query may attend to a key of any row."""
    n_queries, n_keys = mask.queries.segments.shape[1], keys.segments.shape[1]
    if not n_queries or not n_keys:
        return []
    status = mask.rule.classify_tile(_cut(mask.queries), _cut(keys))
    shape = -1, -(-n_queries // TILE_SIZE), -(-n_keys // TILE_SIZE)
    some = status.any_visible.expand(shape).any(0).nonzero().tolist()
    every = status.all_visible.expand(shape).all(0).tolist()
    return [
        Tile(
            slice(row * TILE_SIZE, min((row + 1) * TILE_SIZE, n_queries)),
            slice(column * TILE_SIZE, min((column + 1) * TILE_SIZE, n_keys)),
            not every[row][column],
        )
        for row, column in some
    ]


def _cut(tokens: TokenPositions) -> TokenPositions:
    """Cut tokens into tiles, (batch, tiles, tile); the last tile is filled up with its last token, which changes no bound."""
    n = tokens.segments.shape[1]
    index = torch.arange(-(-n // TILE_SIZE) * TILE_SIZE, device=tokens.segments.device).clamp(max=n - 1)
    return tokens.map(lambda x: x[:, index].unflatten(1, (-1, TILE_SIZE)))
