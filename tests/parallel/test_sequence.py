"""Collectives over sequences that are split over ranks, against one process."""

from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from transom.parallel.axes.sequence import chunk_range, gather_sequence, reduce_scatter_sequence, split_loss_mask, split_sequence
from transom.parallel.processes.local_ranks import run_on_ranks

CASES = [(length, dim) for length in (1, 2, 5, 7, 8) for dim in (0, 1, 2)]
"""Length and axis of the tokens."""


def _whole(length: int, dim: int, seed: int) -> Tensor:
    shape = [2, 3]
    shape.insert(dim, length)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _results(rank: int) -> list[list[tuple[Tensor, Tensor]]]:
    """Return results and gradients of each function for all lengths and axes, from one group of ranks."""
    group = distributed.group.WORLD
    return [[function(rank, *case, group) for case in CASES] for function in (_gather, _reduce_scatter, _split)]


def _gather(rank: int, length: int, dim: int, group: Any) -> tuple[Tensor, Tensor]:
    """Return the whole sequence and the gradient of this rank's chunk of the sum over the ranks of r(rank) * whole."""
    chunk = _whole(length, dim, 0).narrow(dim, *_start_and_size(length, rank, group.size())).requires_grad_()
    whole = gather_sequence(chunk, length, dim - 3, group)
    (gradient,) = torch.autograd.grad((whole * _whole(length, dim, 1 + rank)).sum(), chunk)
    return whole.detach(), gradient


def _start_and_size(length: int, rank: int, n: int) -> tuple[int, int]:
    start, end = chunk_range(length, rank, n)
    return start, end - start


def _reduce_scatter(rank: int, length: int, dim: int, group: Any) -> tuple[Tensor, Tensor]:
    x = _whole(length, dim, 1 + rank).requires_grad_()
    chunk = reduce_scatter_sequence(x, dim, group)
    weight = _whole(length, dim, 0).narrow(dim, *_start_and_size(length, rank, group.size()))
    (gradient,) = torch.autograd.grad((chunk * weight).sum(), x)
    return chunk.detach(), gradient


def _split(rank: int, length: int, dim: int, group: Any) -> tuple[Tensor, Tensor]:
    x = _whole(length, dim, 0).requires_grad_()
    chunk = split_sequence(x, dim, group)
    (gradient,) = torch.autograd.grad(chunk.square().sum(), x)
    return chunk.detach(), gradient


@pytest.mark.parametrize("n", [2, 3, 4])
def test_collectives_and_their_gradients(n: int) -> None:
    results = run_on_ranks(n, _results)
    for case, (length, dim) in enumerate(CASES):
        of_all = sum((_whole(length, dim, 1 + rank) for rank in range(n)), torch.tensor(0.0))
        (gathered, its_gradient), (reduced, reduced_gradient), (chunk, chunk_gradient) = (
            [torch.stack(each) if i in whole else torch.cat(each, dim) for i, each in enumerate(zip(*per_rank, strict=True))]
            for per_rank, whole in zip(_per_rank(results, case), ((0,), (1,), (1,)), strict=True)
        )
        x = _whole(length, dim, 0)
        assert torch.equal(gathered, x.expand_as(gathered)) and torch.equal(reduced_gradient, x.expand_as(reduced_gradient))
        torch.testing.assert_close((its_gradient, reduced), (of_all, of_all))
        assert torch.equal(chunk, x)
        torch.testing.assert_close(chunk_gradient.sum(0), 2 * x)  # the gradient of a part is partial


def _per_rank(results: list[list[list[tuple[Tensor, Tensor]]]], case: int) -> list[list[tuple[Tensor, Tensor]]]:
    """Return, per function, each rank's results of a case."""
    return [[rank[function][case] for rank in results] for function in range(3)]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_chunks_are_those_of_torch_chunk(n: int) -> None:
    for length in range(1, 12):
        chunks = [chunk.tolist() for chunk in torch.arange(length).chunk(n)]
        assert [list(range(*chunk_range(length, index, n))) for index in range(n)] == chunks + [[]] * (n - len(chunks))


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_parts_of_a_loss_mask_are_disjoint_and_even(n: int, shape: tuple[int, ...]) -> None:
    for fraction in (0.0, 0.3, 1.0):
        mask = torch.rand(shape, generator=torch.Generator().manual_seed(n)) < fraction
        parts = torch.stack([split_loss_mask(mask, index, n) for index in range(n)])
        assert torch.equal(parts.sum(0), mask.long())
        assert parts.flatten(1).sum(1).max() == -(-int(mask.sum()) // n)


def test_a_part_of_a_loss_mask_keeps_both_copies_of_its_labels() -> None:
    mask = torch.tensor([[True, False, True, True], [False, True, True, False]])
    both = torch.cat([mask, mask])
    for index in range(3):
        part = split_loss_mask(both, index, 3, n_copies=2)
        assert torch.equal(part[:2], part[2:]) and torch.equal(part[:2], split_loss_mask(mask, index, 3))
