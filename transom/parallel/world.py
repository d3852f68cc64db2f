"""The processes that share a run, as each of them sees the others."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed

from transom.errors import TransomError

PATIENCE = timedelta(days=7)
"""How long one process waits for another: a validation of the first may take any time. A process that is gone is noticed at once,
and one that is stopped by its heartbeats."""


class ProcessLostError(TransomError):
    """Another process of the run is gone."""


class World:
    """What all processes of a run do together. Alone, each of these is what it would be without.

    Attributes:
        rank: number of this process, from 0.
        size: how many there are.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        """Use ``joined`` where there are others."""
        self.rank, self.size = rank, size

    def from_first(self, number: int = 0) -> int:
        """Return the first process's number to all."""
        if self.size == 1:
            return number
        told = torch.tensor([number])
        self._together(lambda: distributed.broadcast(told, 0))
        return int(told)

    def copied(self, tensors: Sequence[Tensor]) -> None:
        """Put the first process's tensors in place of each process's own."""
        if self.size == 1:
            return
        flat = torch.cat([x.detach().reshape(-1) for x in tensors])
        self._together(lambda: distributed.broadcast(flat, 0))
        with torch.no_grad():
            for x, part in zip(tensors, flat.split([x.numel() for x in tensors]), strict=True):
                x.copy_(part.view_as(x))

    def totals(self, *numbers: float) -> tuple[float, ...]:
        """Return the sum of each number over all processes, in float64."""
        if self.size == 1:
            return numbers
        sums = torch.tensor(numbers, dtype=torch.float64)
        self._together(lambda: distributed.all_reduce(sums))
        return tuple(sums.tolist())

    def summed(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the sum of each tensor over all processes: the same bits in each of them."""
        if self.size == 1:
            return list(tensors)
        flat = torch.cat([x.reshape(-1) for x in tensors])
        self._together(lambda: distributed.all_reduce(flat))
        return [part.view_as(x) for part, x in zip(flat.split([x.numel() for x in tensors]), tensors, strict=True)]

    def gathered(self, x: Tensor) -> list[Tensor]:
        """Return each process's tensor of one shape, by rank."""
        if self.size == 1:
            return [x]
        every = [torch.empty_like(x) for _ in range(self.size)]
        self._together(lambda: distributed.all_gather(every, x))
        return every

    def joint(self, numbers: Sequence[int]) -> list[int]:
        """Return all processes' lists as one, by rank."""
        lengths = [int(n) for n in self.gathered(torch.tensor([len(numbers)]))]
        row = torch.zeros(max(lengths), dtype=torch.long)
        row[: len(numbers)] = torch.tensor(numbers, dtype=torch.long)
        return [number for n, each in zip(lengths, self.gathered(row), strict=True) for number in each[:n].tolist()]

    def _together(self, act: Callable[[], object]) -> None:
        try:
            act()
        except RuntimeError as error:  # what gloo raises when a connection ends
            raise ProcessLostError(
                f"expected all {self.size} processes of the run to go on, found one gone; its last checkpoint is kept: go on with --resume"
            ) from error


ALONE = World()
"""The world of a run in one process."""


@contextmanager
def joined(rank: int, size: int, meeting: Path) -> Iterator[World]:
    """Join the other processes of this machine; all must come.

    Args:
        rank: number of this process, from 0.
        size: how many there are.
        meeting: a file, the same for all, that none of them made.

    Raises:
        ProcessLostError: one of them ended meanwhile.
    """
    hook = sys.excepthook
    try:
        try:
            distributed.init_process_group("gloo", init_method=meeting.as_uri(), rank=rank, world_size=size, timeout=PATIENCE)
        except RuntimeError as error:
            _reset_groups()
            raise ProcessLostError(f"expected {size} processes to join, found one gone") from error
        try:
            yield World(rank, size)
        finally:
            distributed.destroy_process_group()
    finally:
        sys.excepthook = hook  # PyTorch's, which puts the rank before each line, would stay


def _reset_groups() -> None:
    """Let PyTorch count its groups from zero again, as only the end of a group does: its next one would wait for others of another name."""
    store = distributed.HashStore()  # type: ignore[attr-defined]  # documented, and not in the module's list of names
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    distributed.destroy_process_group()
