"""Time gloo's collectives between two processes of this machine, alone and between computations, for ``benchmarks.layouts``.

Between computations, each process multiplies matrices for a few milliseconds before each collective, as in a training step: its cores
are then busy, its caches are cold, and one process arrives later than the other. ``GLOO`` and ``GLOO_EFFICIENCY`` in
``transom/planning/cluster.py`` come from this table.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from benchmarks.translation import print_table
from benchmarks.worker import Worker
from transom.parallel.processes.collectives import join_process_group
from transom.planning.cluster import sent_bytes

MIB = 2**20
SIZES = (MIB // 4, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
"""Bytes of a whole tensor: hidden states of a small batch up to the gradients of a model."""

_GROUP = ExitStack()
"""The process group of a rank, which it leaves when the benchmark ends it."""


def collectives_table(rounds: int, sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """Time each collective of each size between two processes with one thread each.

    Returns:
        Milliseconds, medians of the slower process, and the rate at which a process sends, alone and between computations.
    """
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store"

        def start(rank: int) -> Worker:
            return Worker("benchmarks.collectives", "timed_collectives", rank, store, sizes, rounds, threads=1)

        workers = [stack.enter_context(worker) for worker in pool.map(start, range(2))]
        rows = []
        for kind, n_bytes in workers[0].names:
            found = list(pool.map(lambda worker, name=(kind, n_bytes): worker.run_once(name)[1], workers))
            alone, busy = (max(times) for times in zip(*found, strict=True))
            sent = sent_bytes(kind, n_bytes, 2) / 1e9
            row = {"collective": kind, "MiB": n_bytes / MIB, "ms": round(1e3 * alone, 2), "ms_between_computations": round(1e3 * busy, 2)}
            rows.append(row | {"GB_per_second": round(sent / alone, 2), "between_computations": round(sent / busy, 2)})
    return print_table("gloo between two processes, float32", rows)


def timed_collectives(
    rank: int, store: Path, sizes: Sequence[int], rounds: int
) -> dict[tuple[str, int], Callable[[], tuple[float, float]]]:
    """Join a group of two processes; return, per collective and size, a function that times it alone and between computations."""
    _GROUP.enter_context(join_process_group(store.as_uri(), rank, 2))
    square = torch.randn(768, 768)

    def compute() -> None:
        for _ in range(4):
            torch.mm(square, square)

    def timed(collective: Callable[[], object]) -> tuple[float, float]:
        timings: dict[bool, list[float]] = {False: [], True: []}
        for busy in (False, True):
            for _ in range(rounds + 2):
                distributed.barrier()
                if busy:
                    compute()
                start = time.perf_counter()
                collective()
                timings[busy].append(time.perf_counter() - start)
        alone, between = (statistics.median(each[2:]) for each in timings.values())
        return alone, between

    workloads: dict[tuple[str, int], Callable[[], tuple[float, float]]] = {}
    for n_bytes in sizes:
        for kind, collective in _collectives(rank, torch.randn(n_bytes // 4)).items():
            workloads[kind, n_bytes] = lambda collective=collective: timed(collective)
    return workloads


def _collectives(rank: int, x: Tensor) -> dict[str, Callable[[], object]]:
    """Return the collectives of a tensor among two ranks, by their kinds in ``transom.planning.cluster``."""
    half, received = x[: len(x) // 2].clone(), torch.empty_like(x)

    def send() -> None:
        transfers = [distributed.P2POp(distributed.isend, x, 1 - rank), distributed.P2POp(distributed.irecv, received, 1 - rank)]
        for work in distributed.batch_isend_irecv(transfers):
            work.wait()

    return {
        "all-gather": lambda: distributed.all_gather_single(received, half),
        "reduce-scatter": lambda: distributed.reduce_scatter_single(half, x),
        "all-reduce": lambda: distributed.all_reduce(received),
        "all-to-all": lambda: distributed.all_to_all_single(received, x),
        "send": send,
    }
