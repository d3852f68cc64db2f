"""Base class of approximations of attention, which unpacks packed rows and returns the implied attention weights for inspection."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transom.layers.context import AttentionContext, SegmentMask


class Approximation(nn.Module, ABC):
    """Approximate attention Z = W V, with weights W that approximate softmax(Q K^T / sqrt(d_k)) without computing all query-key pairs.

    Computed in float32 or wider, because of sums of exponentials over a whole sequence and of the pseudo-inverse.

    Attributes:
        supports_packing: whether a row may hold several sequences; if False, every row is processed as one sequence, without a check.
    """

    supports_packing = True

    def forward(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        v: Float[Tensor, "batch kv_heads key d_value"],
        segment_mask: SegmentMask | None = None,
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Compute Z, where each query attends to keys of its own segment; a query without a visible key gives 0."""
        dtype, wide = v.dtype, torch.promote_types(v.dtype, torch.float32)
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = q.to(wide), k.to(wide), v.to(wide)
            if segment_mask is None:
                z = self.attend(q, k, v)
            elif segment_mask.causal:
                z = self.attend_causal(q, k, v, segment_mask.keys)
            elif self.supports_packing and (n_sequences := int(max(segment_mask.queries.max(), segment_mask.keys.max()))) > 1:
                query_layout, key_layout = (
                    _SequenceLayout.of(segments, n_sequences) for segments in (segment_mask.queries, segment_mask.keys)
                )
                z = query_layout.from_layout(
                    self.attend(query_layout.to_layout(q), key_layout.to_layout(k), key_layout.to_layout(v), key_layout.token_mask)
                )
            else:
                z = self.attend(q, k, v, segment_mask.keys > 0).masked_fill((segment_mask.queries == 0)[:, None, :, None], 0.0)
        return z.to(dtype)

    @abstractmethod
    def attend(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        v: Float[Tensor, "batch kv_heads key d_value"],
        key_mask: Bool[Tensor, "#batch key"] | None = None,
    ) -> Float[Tensor, "batch n_heads query d_value"]:
        """Compute Z of bidirectional attention for rows of one sequence each, padded on the right.

        Args:
            q: queries.
            k: keys.
            v: values.
            key_mask: True at keys that are not padding; None without padding.
        """

    def attend_causal(
        self,
        q: Float[Tensor, "batch n_heads length d_head"],
        k: Float[Tensor, "batch kv_heads length d_head"],
        v: Float[Tensor, "batch kv_heads length d_value"],
        segments: Int[Tensor, "#batch length"],
    ) -> Float[Tensor, "batch n_heads length d_value"]:
        """Compute Z, where each token attends to itself and earlier tokens of its own segment."""
        raise AssertionError("the schema allows causal attention only where it is implemented")

    def implied_weights(
        self,
        q: Float[Tensor, "batch n_heads query d_head"],
        k: Float[Tensor, "batch kv_heads key d_head"],
        ctx: AttentionContext = AttentionContext(),
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return the implied weights W as a matrix. This slow reference computes sequence by sequence, without padding."""
        wide = torch.promote_types(q.dtype, torch.float32)
        weights = q.new_zeros(len(q), q.shape[1], q.shape[2], k.shape[2], dtype=wide)
        for row, queries, keys in sequences_of(q, k, ctx):
            weights_of_sequence = self.unmasked_weights(q[row : row + 1, :, queries].to(wide), k[row : row + 1, :, keys].to(wide))
            weights[row, :, queries[:, None], keys] = weights_of_sequence[0]
        return weights

    @abstractmethod
    def unmasked_weights(
        self, q: Float[Tensor, "batch n_heads query d_head"], k: Float[Tensor, "batch kv_heads key d_head"]
    ) -> Float[Tensor, "batch n_heads query key"]:
        """Return the implied weights of sequences without padding or mask."""


def sequences_of(q: Tensor, k: Tensor, ctx: AttentionContext) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield the row, the indices of the queries and those of the keys of each sequence, padding left out."""
    for row, seen in enumerate(dense_mask(q, k, ctx)):
        for keys in seen.unique(dim=0):
            if keys.any():
                yield row, (seen == keys).all(-1).nonzero()[:, 0], keys.nonzero()[:, 0]


def dense_mask(q: Tensor, k: Tensor, ctx: AttentionContext) -> Bool[Tensor, "batch query key"]:
    """Return True where a query may attend to a key; queries at padding attend to no key."""
    mask = torch.ones(len(q), 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    if ctx.mask is not None:
        mask = mask & ctx.mask
    if ctx.token_mask is not None:
        mask = mask & ctx.token_mask[:, None, :, None]
    return mask[:, 0]


class _SequenceLayout(NamedTuple):
    """Layout that unpacks rows of several sequences to rows of one sequence each.

    Attributes:
        source: index of each token in the flattened packed rows.
        target: index of the same token in the flattened layout.
        rows: rows of the layout: batch times the largest number of sequences in a packed row.
        length: length of each row of the layout.
        shape: (batch, length) of the packed rows.
    """

    source: Int[Tensor, "tokens"]
    target: Int[Tensor, "tokens"]
    rows: int
    length: int
    shape: tuple[int, int]

    @classmethod
    def of(cls, segments: Int[Tensor, "batch length"], n_sequences: int) -> "_SequenceLayout":
        """Build the layout for packed rows of at most ``n_sequences`` sequences each."""
        rows, length = segments.shape
        inside = segments[:, :, None] == torch.arange(1, n_sequences + 1, device=segments.device)
        row, source, sequence = inside.nonzero(as_tuple=True)
        max_length = int(inside.sum(1).max())
        rank = inside.cumsum(1)[row, source, sequence] - 1
        return cls(
            row * length + source, (row * n_sequences + sequence) * max_length + rank, rows * n_sequences, max_length, (rows, length)
        )

    @property
    def token_mask(self) -> Bool[Tensor, "batch length"]:
        """True at tokens of the layout, False at its padding."""
        token_mask = torch.zeros(self.rows * self.length, dtype=torch.bool, device=self.target.device)
        return token_mask.index_fill(0, self.target, True).view(self.rows, self.length)

    def to_layout(self, x: Float[Tensor, "batch heads length width"]) -> Float[Tensor, "rows heads positions width"]:
        """Move vectors from packed rows to the layout, padded with 0."""
        laid = _scatter_rows(x, self.source, self.target, self.rows * self.length)
        return laid.unflatten(0, (self.rows, self.length)).transpose(1, 2)

    def from_layout(self, x: Float[Tensor, "rows heads positions width"]) -> Float[Tensor, "batch heads length width"]:
        """Move vectors from the layout back to packed rows; padding gets 0."""
        return _scatter_rows(x, self.target, self.source, self.shape[0] * self.shape[1]).unflatten(0, self.shape).transpose(1, 2)


def _scatter_rows(x: Tensor, source: Tensor, target: Tensor, n: int) -> Tensor:
    """Return (n, heads, width): the vectors of ``x`` at flat token indices ``source``, moved to indices ``target``; all others are 0."""
    x = x.transpose(1, 2).flatten(0, 1)
    return x.new_zeros(n, *x.shape[1:]).index_copy(0, target, x.index_select(0, source))
