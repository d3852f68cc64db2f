"""Measure the machine's peak matrix-product rate and memory bandwidth, the reference for reported utilization."""

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from transom.planning.memory import free_memory

SHAPES = ((512, 512, 512), (1024, 1024, 1024), (4096, 512, 2048), (2048, 2048, 2048), (4096, 2048, 4096))
"""Measured matrix products (rows, inner, columns), small ones first so that a slow machine stops early; the best rate is the peak."""

READ_BYTES = 2**28
"""Bytes read to measure memory bandwidth; larger than the caches."""

MEMORY_FRACTION = 0.25
"""Largest fraction of the free memory that measuring on a CPU takes: of a process with little memory, smaller matrices are measured."""

LOW_UTILIZATION = 0.1
"""Share of the peak rate below which a model that is large enough to reach it is slow."""

BUDGET = 0.5
"""Measuring time per dtype in seconds, for all shapes together."""


@dataclass(frozen=True)
class PeakRates:
    """Highest rates of a device, as measured by ``measure_peak``.

    Attributes:
        flops: FLOP/s of matrix products, by dtype.
        bandwidth: bytes per second read from memory.
    """

    flops: dict[torch.dtype, float]
    bandwidth: float


@functools.cache
def measure_peak(device: torch.device | None = None) -> PeakRates:
    """Measure the peak matrix-product rate per dtype and the memory bandwidth; about two seconds, once per process.

    Args:
        device: device to measure; the CPU by default.
    """
    device = device or torch.device("cpu")
    dtypes = (torch.float32, torch.bfloat16) if device.type == "cpu" else (torch.float32, torch.bfloat16, torch.float16)
    room = int(MEMORY_FRACTION * free_memory()) if device.type == "cpu" else sys.maxsize
    rates = {dtype: _best_rate(dtype, device, room) for dtype in dtypes}
    memory = torch.ones(max(min(READ_BYTES, room), 2**16) // torch.float32.itemsize, device=device)
    return PeakRates(rates, memory.nbytes / best_seconds(memory.sum, device, budget=BUDGET / 4))


def describe_rate(flops_per_second: float, peak: float) -> str:
    """Describe a rate of matrix products beside the peak rate.

    >>> describe_rate(30e9, 120e9)
    '30.0 GFLOP/s, 25% of the 120 that this machine reaches'
    """
    return f"{flops_per_second / 1e9:,.1f} GFLOP/s, {flops_per_second / peak:.0%} of the {peak / 1e9:,.0f} that this machine reaches"


def matmul_rate(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, budget: float) -> float:
    """Return the rate of a matrix product in FLOP/s.

    Args:
        shape: (rows, inner, columns).
        dtype: dtype of both factors.
        device: device to measure.
        budget: seconds to measure, approximately.
    """
    rows, inner, columns = shape
    left, right = torch.ones(rows, inner, dtype=dtype, device=device), torch.ones(inner, columns, dtype=dtype, device=device)
    return 2 * rows * inner * columns / best_seconds(lambda: left @ right, device, budget)


def best_seconds(work: Callable[[], object], device: torch.device, budget: float) -> float:
    """Return the shortest time of repeated calls of ``work`` in seconds, after one warm-up call; takes about ``budget`` seconds.

    With one thread on a CPU, the thread's CPU time is measured, so that time given to other processes is not included.
    """
    single_thread = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if single_thread else time.perf_counter

    def seconds() -> float:
        start = clock()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return clock() - start

    end = time.perf_counter() + budget
    seconds()
    best = seconds()
    while time.perf_counter() < end:
        best = min(best, seconds())
    return best


def _best_rate(dtype: torch.dtype, device: torch.device, room: int) -> float:
    """Return the best rate of the shapes that fit into ``room`` bytes, and at least of the first."""
    best, end = 0.0, time.perf_counter() + BUDGET
    for shape in SHAPES:
        rows, inner, columns = shape
        if best and torch.float32.itemsize * (rows * inner + inner * columns + rows * columns) > room:
            break
        best = max(best, matmul_rate(shape, dtype, device, BUDGET / len(SHAPES) / 2))
        if time.perf_counter() > end - BUDGET / 3:
            break
    return best
