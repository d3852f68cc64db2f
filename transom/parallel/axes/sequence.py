"""Sequences split over ranks: their parts, and the collectives between parts and whole sequences, with gradients.

Rank ``i`` of ``n`` holds the ``i``-th chunk that ``torch.chunk`` returns: ceil(length / n) tokens, fewer at the end, perhaps none.

The loss of a run is the sum of the losses of all ranks, so the gradient of a rank's tensor is that of this sum. The backward pass of each
function is therefore its transpose: of a gather a reduce-scatter, of a reduce-scatter a gather (Korthikanti et al. 2022, section 4.2.2).
The transpose of taking one chunk fills the other chunks with zeros. Gradients of what precedes ``split_sequence`` are hence partial, as
are those of what follows ``gather_sequence``: their sum over the ranks is the gradient.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, distributed
from torch.autograd import Function
from torch.distributed import ProcessGroup
from torch.nn import functional as F

from transom.models.base import Network


def chunk_range(length: int, index: int, n: int) -> tuple[int, int]:
    """Return start and end of chunk ``index`` of ``n`` chunks of ``length`` tokens.

    >>> [chunk_range(5, index, 4) for index in range(4)]
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    size = -(-length // n)
    return min(index * size, length), min((index + 1) * size, length)


def split_sequence(x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
    """Return this rank's chunk along ``dim`` of a tensor that all ranks have whole; the backward pass needs no communication."""
    start, end = chunk_range(x.shape[dim], group.rank(), group.size())
    return x.narrow(dim, start, end - start)


def gather_sequence(x: Float[Tensor, "..."], length: int, dim: int, group: ProcessGroup) -> Float[Tensor, "..."]:
    """Return the whole sequence from the ranks' chunks along ``dim``; the backward pass is a reduce-scatter.

    Args:
        x: this rank's chunk, ``chunk_range`` of the whole.
        length: length of the whole along ``dim``.
        dim: axis of the tokens.
        group: ranks that hold the chunks.
    """
    whole: Tensor = _Gather.apply(x, length, dim % x.dim(), group)  # type: ignore[no-untyped-call]
    return whole


def reduce_scatter_sequence(x: Float[Tensor, "..."], dim: int, group: ProcessGroup) -> Float[Tensor, "..."]:
    """Return this rank's chunk along ``dim`` of the sum of all ranks' tensors; the backward pass is a gather."""
    chunk: Tensor = _ReduceScatter.apply(x, dim % x.dim(), group)  # type: ignore[no-untyped-call]
    return chunk


def split_token_masks(model: Network, group: ProcessGroup) -> None:
    """Let ``model.token_masks`` return this rank's tokens, whose activations an observer records."""
    whole = model.token_masks
    vars(model)["token_masks"] = lambda site, batch: [split_sequence(mask, 1, group) for mask in whole(site, batch)]


def split_loss_mask(loss_mask: Bool[Tensor, "*positions"], index: int, n: int, n_copies: int = 1) -> Bool[Tensor, "*positions"]:
    """Return a mask of chunk ``index`` of the ``n`` chunks into which the True elements are split; it waits for no GPU.

    Args:
        loss_mask: mask of the labels that contribute to the loss.
        index: chunk to keep.
        n: number of chunks.
        n_copies: copies of each label, one after the other in the order of the True elements; a chunk keeps all copies of its labels.
    """
    number = loss_mask.flatten().cumsum(0)  # from 1, at the True elements
    n_labels = number[-1:] // n_copies
    size = -(-n_labels // n)
    position = (number - 1) % n_labels.clamp(min=1)
    return loss_mask & ((position >= index * size) & (position < (index + 1) * size)).view_as(loss_mask)


class _Gather(Function):
    """All-gather of chunks; backward, reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: int, dim: int, group: ProcessGroup) -> Tensor:
        ctx.dim, ctx.group = dim, group
        size = chunk_range(length, 0, group.size())[1]
        chunk = _pad(x, dim, size).contiguous()
        chunks = chunk.new_empty(group.size(), *chunk.shape)
        distributed.all_gather_single(chunks.flatten(0, 1), chunk, group=group)
        return chunks.movedim(0, dim).flatten(dim, dim + 1).narrow(dim, 0, length)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return reduce_scatter_sequence(gradient, ctx.dim, ctx.group), None, None, None


class _ReduceScatter(Function):
    """Reduce-scatter of whole sequences; backward, all-gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        ctx.dim, ctx.group, ctx.length = dim, group, x.shape[dim]
        start, end = chunk_range(x.shape[dim], group.rank(), group.size())
        size = chunk_range(x.shape[dim], 0, group.size())[1]
        chunks = _pad(x, dim, group.size() * size).unflatten(dim, (group.size(), size)).movedim(dim, 0).contiguous()
        chunk = torch.empty_like(chunks[0])
        distributed.reduce_scatter_single(chunk, chunks.flatten(0, 1), group=group)
        return chunk.narrow(dim, 0, end - start)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gather_sequence(gradient, ctx.length, ctx.dim, ctx.group), None, None


def _pad(x: Tensor, dim: int, length: int) -> Tensor:
    """Return ``x`` with zeros appended along ``dim`` up to ``length``."""
    return x if x.shape[dim] == length else F.pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, length - x.shape[dim]))
