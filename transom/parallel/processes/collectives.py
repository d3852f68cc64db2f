"""Collective operations over the processes of a run."""

import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

from transom.errors import TransomError

TIMEOUT = timedelta(days=7)
"""Timeout of a collective: long, because the other ranks wait while rank 0 validates. Exited processes are detected at once,
stopped processes by their missing heartbeats."""


BUCKET_BYTES = 2**22
"""Least size of what one all-reduce sums, if there is as much."""

KEPT = "the last checkpoint is kept: continue with --resume"
"""End of the message on a lost process."""


class ProcessLostError(TransomError):
    """Raised when another process of the run has exited or no longer responds."""


class World:
    """Collective operations over the processes of a group. With one process, each operation returns its input.

    Attributes:
        rank: rank of this process in the group, from 0.
        size: number of processes.
        group: the process group; None for that of all processes of the run.
    """

    def __init__(self, rank: int = 0, size: int = 1, group: distributed.ProcessGroup | None = None) -> None:
        """Set rank, size and group; the group of all processes comes from ``join_process_group``, others from ``Ranks.along``."""
        self.rank, self.size, self.group = rank, size, group

    def broadcast_scalars(self, *numbers: float) -> tuple[float, ...]:
        """Return the numbers of rank 0 on every rank, in float64; every rank passes equally many."""
        if self.size == 1:
            return numbers
        values = torch.tensor(numbers, dtype=torch.float64)
        self._run_collective(lambda: distributed.broadcast(values, group=self.group, group_src=0))
        return tuple(values.tolist())

    def broadcast_text(self, text: str = "") -> str:
        """Return ``text`` of rank 0 on every rank."""
        return self.broadcast_bytes(text.encode()).decode()

    def broadcast_bytes(self, data: bytes, source: int = 0) -> bytes:
        """Return ``data`` of the rank ``source`` on every rank."""
        if self.size == 1:
            return data
        length = torch.tensor([len(data)])
        self._run_collective(lambda: distributed.broadcast(length, group=self.group, group_src=source))
        values = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == source and data:
            values = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self._run_collective(lambda: distributed.broadcast(values, group=self.group, group_src=source))
        return bytes(values.numpy().data)

    @torch.no_grad()
    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy rank 0's tensors into the tensors of every rank, in place."""
        if self.size > 1:
            for x in tensors:
                self._run_collective(partial(distributed.broadcast, x, group=self.group, group_src=0))

    def all_reduce_scalars(self, *numbers: float) -> tuple[float, ...]:
        """Return the sum of each number over all ranks, in float64."""
        if self.size == 1:
            return numbers
        sums = torch.tensor(numbers, dtype=torch.float64)
        self._run_collective(lambda: distributed.all_reduce(sums, group=self.group))
        return tuple(sums.tolist())

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, in place, bit-identical on every rank.

        Large tensors are summed where they are, small ones in buckets, so that no second copy of all of them is needed.
        """
        if self.size == 1:
            return
        for bucket in _buckets(tensors):
            flat = bucket[0] if len(bucket) == 1 and bucket[0].is_contiguous() else torch.cat([x.reshape(-1) for x in bucket])
            self._run_collective(partial(distributed.all_reduce, flat, group=self.group))
            if flat is not bucket[0]:
                for x, total in zip(bucket, flat.split([x.numel() for x in bucket]), strict=True):
                    x.copy_(total.view_as(x))

    def all_gather(self, x: Tensor) -> list[Tensor]:
        """Return ``x`` of all ranks, in rank order; all ranks must pass the same shape."""
        if self.size == 1:
            return [x]
        tensors = [torch.empty_like(x) for _ in range(self.size)]
        self._run_collective(lambda: distributed.all_gather(tensors, x, group=self.group))
        return tensors

    def all_gather_lists(self, numbers: Sequence[int]) -> list[int]:
        """Return the lists of all ranks, concatenated in rank order; the ranks may pass lists of different lengths."""
        lengths = [int(n) for n in self.all_gather(torch.tensor([len(numbers)]))]
        row = torch.zeros(max(lengths), dtype=torch.long)
        row[: len(numbers)] = torch.tensor(numbers, dtype=torch.long)
        return [number for n, each in zip(lengths, self.all_gather(row), strict=True) for number in each[:n].tolist()]

    @torch.no_grad()
    def gather_tensors(self, tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
        """Return on rank 0 the tensors of all ranks by name, none on the others; of tensors with one name those of the first rank.

        Args:
            tensors: tensors of this rank, of any shapes and dtypes.
            device: device of the tensors, through which their sizes travel too.
        """
        if self.rank > 0:
            header = json.dumps([[name, list(x.shape), str(x.dtype).removeprefix("torch.")] for name, x in tensors.items()]).encode()
            sizes = torch.tensor([len(header)], device=device), torch.frombuffer(bytearray(header), dtype=torch.uint8).to(device)
            for x in (*sizes, *map(_bytes_of, tensors.values())):
                if x.numel():
                    self._run_collective(partial(distributed.send, x, group=self.group, group_dst=0))
            return {}
        found = dict(tensors)
        for rank in range(1, self.size):
            length = self._receive(torch.empty(1, dtype=torch.long, device=device), rank)
            header = bytes(self._receive(torch.empty(int(length), dtype=torch.uint8, device=device), rank).tolist())
            for name, shape, dtype in json.loads(header):
                x = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
                self._receive(_bytes_of(x), rank)
                found.setdefault(name, x)
        return found

    def _receive(self, x: Tensor, rank: int) -> Tensor:
        if x.numel():
            self._run_collective(partial(distributed.recv, x, group=self.group, group_src=rank))
        return x

    def _run_collective(self, collective: Callable[[], object]) -> None:
        try:
            collective()
        except RuntimeError as error:  # raised by gloo when a connection closes
            raise ProcessLostError(f"expected {self.size} running processes, found that one has exited; {KEPT}") from error


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield successive tensors in lists of at least ``BUCKET_BYTES`` but for the last; each large tensor is alone."""
    bucket, n_bytes = list[Tensor](), 0
    for x in tensors:
        if x.nbytes >= BUCKET_BYTES:
            yield [x]
            continue
        bucket.append(x)
        n_bytes += x.nbytes
        if n_bytes >= BUCKET_BYTES:
            yield bucket
            bucket, n_bytes = [], 0
    if bucket:
        yield bucket


def _bytes_of(x: Tensor) -> Tensor:
    """Return a tensor's bytes; a view of it if it is contiguous."""
    return x.detach().contiguous().view(-1).view(torch.uint8)


SINGLE_PROCESS = World()
"""The world of a run with one process."""


@contextmanager
def join_process_group(meeting: Any, rank: int, size: int) -> Iterator[World]:
    """Join the process group of a run, waiting until all ranks have joined, and leave it after the block.

    Args:
        meeting: where the ranks meet: the URI of the file that the group creates, or a PyTorch store of all ranks.
        rank: rank of this process, from 0.
        size: number of processes.

    Raises:
        ProcessLostError: another process exited while joining.
    """
    backend, hook = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", sys.excepthook
    try:
        try:
            where = {"init_method" if isinstance(meeting, str) else "store": meeting}
            distributed.init_process_group(backend, **where, rank=rank, world_size=size, timeout=TIMEOUT)
        except RuntimeError as error:
            _reset_group_counter()
            raise ProcessLostError(f"expected {size} processes to join, found that one has exited") from error
        try:
            with warnings.catch_warnings():
                ignore_layout_warnings()
                yield World(rank, size)
        finally:
            distributed.destroy_process_group()
    finally:
        sys.excepthook = hook  # PyTorch installs one that prefixes each line with the rank


def ignore_layout_warnings() -> None:
    """Ignore that a module of FSDP2 returns a view, into which nothing writes, and that tensors which two axes split are gathered twice."""
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view", UserWarning)
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def _reset_group_counter() -> None:
    """Reset to zero the counter from which PyTorch makes the names of process groups.

    Only destroying a group resets the counter. Without the reset, the next group would have another name here than on the other ranks, and
    joining it would never end.
    """
    store = distributed.HashStore()  # type: ignore[attr-defined]  # documented, but missing from the module's stubs
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    distributed.destroy_process_group()
