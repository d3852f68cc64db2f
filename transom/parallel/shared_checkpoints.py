"""Checkpoints that all ranks of a run write together while training continues, and from which they resume together."""

import copy
import json
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, distributed

from transom import errors
from transom.checkpoints.checkpoint import Checkpoints, LatestCheckpoint
from transom.checkpoints.peers import ALONE, Peers
from transom.checkpoints.pieces import Piece, Pieces, assign_writers, describe
from transom.checkpoints.save_pieces import save_pieces
from transom.errors import TransomError
from transom.parallel.processes.collectives import KEPT, TIMEOUT, ProcessLostError, World
from transom.parallel.processes.torchrun import processes_on_machine
from transom.planning.memory import free_memory

T = TypeVar("T")

MAX_COPY_SHARE = 0.5
"""Largest part of the free memory that the copy of a checkpoint may take; a larger one is written before training continues."""


class ProcessGroupPeers:
    """The ranks of a run, with a process group of their own, so that threads can exchange messages while the run's other groups are in use.

    Attributes:
        rank: rank of this process, from 0.
        size: number of ranks.
    """

    def __init__(self, rank: int, size: int) -> None:
        """Create the group; all ranks must do so at the same time."""
        self.rank, self.size = rank, size
        self._group = distributed.new_group(backend="gloo", timeout=TIMEOUT)

    def on_all(self, function: Callable[[], T]) -> list[T]:
        """Call a function on every rank and return the results in rank order; see ``Peers``.

        Raises:
            TransomError: the error of the first rank whose call failed.
            ProcessLostError: a rank has exited.
        """
        try:
            data = json.dumps({"result": function()}).encode()
        except Exception as error:
            self._gather(json.dumps({"error": type(error).__name__, "text": str(error)}).encode())  # for which the others wait
            raise
        messages = [json.loads(each) for each in self._gather(data)]
        for rank, each in enumerate(messages):
            if "error" in each:
                if (kind := getattr(errors, each["error"], None)) is not None:
                    raise kind(each["text"])
                raise TransomError(f"expected rank {rank} to take part in the checkpoint, found {each['error']}: {each['text']}")
        return [each["result"] for each in messages]

    def _gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks, in rank order."""
        lengths = [torch.empty(1, dtype=torch.long) for _ in range(self.size)]
        try:
            distributed.all_gather(lengths, torch.tensor([len(data)]), group=self._group)
            longest = max(int(n) for n in lengths)
            row = torch.frombuffer(bytearray(data.ljust(longest)), dtype=torch.uint8)
            rows = [torch.empty_like(row) for _ in range(self.size)]
            distributed.all_gather(rows, row, group=self._group)
        except RuntimeError as error:  # raised by gloo when a connection closes
            raise ProcessLostError(f"expected {self.size} running processes, found that one has exited; {KEPT}") from error
        return [bytes(row[: int(n)].numpy().data) for row, n in zip(rows, lengths, strict=True)]


class SharedCheckpoints:
    """The checkpoints of a run, written by a thread of each rank from copies of the tensors.

    All ranks call ``latest``, ``names_elsewhere`` and ``save`` at the same point of the run. ``check`` and ``wait`` concern one rank.

    With one process, or if no tensor is split, rank 0 writes whole tensors in the format of ``Checkpoints.save``.

    Attributes:
        checkpoints: the checkpoints in their folder.
        peers: the ranks of the run.
    """

    def __init__(self, checkpoints: Checkpoints, world: World, on_saved: Callable[[int], None] = lambda step: None) -> None:
        """Use the run's checkpoints; nothing is read or written yet.

        Args:
            checkpoints: in a folder that all ranks share.
            world: the processes of the run.
            on_saved: called with the step of each checkpoint once it is durable, in the thread of the caller; on rank 0 only.
        """
        self.checkpoints = checkpoints
        self.peers: Peers = ALONE if world.size == 1 else ProcessGroupPeers(world.rank, world.size)
        self._on_saved = on_saved
        self._thread = ThreadPoolExecutor(1, "transom-checkpoint")
        self._writing: tuple[int, Future[None]] | None = None

    def latest(self, accept: Callable[[int], None]) -> LatestCheckpoint | None:
        """Find the latest checkpoint that every rank accepts; see ``Checkpoints.latest``."""
        self.wait()
        return self.checkpoints.latest(accept, self.peers)

    def save(self, step: int, pieces: Pieces, state: Mapping[str, Any], after: Callable[[], None] = lambda: None) -> None:
        """Begin to save a checkpoint, after the end of the one before. When this method returns, the tensors may change.

        Args:
            step: number of optimizer steps.
            pieces: pieces by group and name that this rank holds. A piece that several ranks hold is written by the first.
            state: further state for resuming, as JSON values; used on rank 0.
            after: called in the thread of rank 0 once the checkpoint is durable, to delete older ones.

        Raises:
            DiskError: the checkpoint before could not be written.
        """
        self.wait()
        whole, names = assign_writers(self.peers.on_all(lambda: describe(pieces)))
        mine: dict[str, Mapping[str, Piece]] = {
            group: {name: pieces[group][name] for name in each} for group, each in names[self.peers.rank].items()
        }
        if self.peers.rank == 0:
            mine |= {group: pieces[group] for group in pieces if group in whole}
        copies = _copy(mine, processes_on_machine(self.peers.size))
        job = _Job(step, mine if copies is None else copies, whole, any(names), copy.deepcopy(dict(state)), after)
        self._writing = step, self._thread.submit(self._write, job)
        if copies is None:
            job.written.wait()

    def check(self) -> None:
        """Report the end of the writing, if it has ended. Call this on rank 0 at each step.

        Raises:
            DiskError: the checkpoint could not be written.
        """
        if self._writing is not None and self._writing[1].done():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint is durable.

        Raises:
            DiskError: the checkpoint could not be written.
        """
        if self._writing is not None:
            (step, future), self._writing = self._writing, None
            future.result()
            if self.peers.rank == 0:
                self._on_saved(step)

    def names_elsewhere(self, names: Collection[str]) -> frozenset[str]:
        """Return the names of tensors of which only other ranks hold pieces, such as those of other pipeline stages."""
        self.wait()
        return frozenset(name for each in self.peers.on_all(lambda: list(names)) for name in each) - frozenset(names)

    def _write(self, job: "_Job") -> None:
        """Write a checkpoint, in the thread."""
        wholes = {group: {name: piece.tensor for name, piece in job.pieces[group].items()} for group in job.pieces if group in job.whole}
        try:
            if not job.in_pieces and self.peers.rank == 0:
                self.checkpoints.save(job.step, wholes, job.state)
            elif job.in_pieces:
                pieces = {group: named for group, named in job.pieces.items() if group not in job.whole}
                save_pieces(self.checkpoints, job.step, wholes, pieces, job.state, self.peers, job.written.set)
            if self.peers.rank == 0:
                job.after()
        finally:
            job.written.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Wait until the checkpoint is durable, also if another error ends the run."""
        try:
            self.wait()
        except TransomError as failed:
            if error is None:
                raise
            error.add_note(str(failed))
        finally:
            self._thread.shutdown()


@dataclass
class _Job:
    """A checkpoint to write.

    Attributes:
        step: number of optimizer steps.
        pieces: what this rank writes.
        whole: groups that rank 0 writes as whole tensors.
        in_pieces: whether other groups are written in pieces.
        state: further state for resuming.
        after: called on rank 0 once the checkpoint is durable.
        written: set when this rank has written its files.
    """

    step: int
    pieces: Pieces
    whole: set[str]
    in_pieces: bool
    state: dict[str, Any]
    after: Callable[[], None]
    written: threading.Event = field(default_factory=threading.Event)


def _copy(pieces: Pieces, n_processes: int) -> Pieces | None:
    """Copy pieces to memory of the CPU, page-locked for those on a GPU; return None if too little memory is free."""
    n_bytes = sum(piece.tensor.nbytes for named in pieces.values() for piece in named.values())
    if n_bytes > MAX_COPY_SHARE * free_memory(n_processes):
        return None
    copies = {
        group: {name: piece._replace(tensor=_copy_to_cpu(piece.tensor)) for name, piece in named.items()} for group, named in pieces.items()
    }
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # the copies run beside the CPU until here
    return copies


def _copy_to_cpu(x: Tensor) -> Tensor:
    if x.device.type == "cpu":
        return x.detach().clone()
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x.detach(), non_blocking=True)
