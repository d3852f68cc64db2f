"""The machine's best measured speed, the yardstick that speeds are reported against."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

SHAPES = ((512, 512, 512), (1024, 1024, 1024), (4096, 512, 2048), (2048, 2048, 2048), (4096, 2048, 4096))
"""Matrix products whose best rate is the peak: rows, inner width, columns; small first, so that a slow machine stops early."""

READ_BYTES = 2**28
"""Bytes that are read to measure the memory: more than fits in caches."""

BUDGET = 0.5
"""Seconds for one type's shapes."""


@dataclass(frozen=True)
class MachinePeak:
    """The best rates seen.

    Attributes:
        flops: type to floating-point operations a second of matrix products.
        bandwidth: bytes a second read from memory.
    """

    flops: dict[torch.dtype, float]
    bandwidth: float


@functools.cache
def measure_peak(device: torch.device | None = None) -> MachinePeak:
    """Measure the best of a fixed list of matrix products, for each type, and the memory, once a process; takes about two seconds.

    Args:
        device: what to measure; left out, the CPU.
    """
    device = device or torch.device("cpu")
    dtypes = (torch.float32, torch.bfloat16) if device.type == "cpu" else (torch.float32, torch.bfloat16, torch.float16)
    memory = torch.ones(READ_BYTES // 4, device=device)
    return MachinePeak(
        {dtype: _best_rate(dtype, device) for dtype in dtypes}, READ_BYTES / best_seconds(memory.sum, device, budget=BUDGET / 4)
    )


def matmul_rate(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device, budget: float) -> float:
    """Measure a matrix product, in FLOP/s, for about ``budget`` seconds.

    Args:
        shape: rows, inner width, columns.
        dtype: of both factors.
        device: where.
        budget: seconds.
    """
    rows, inner, columns = shape
    left, right = torch.ones(rows, inner, dtype=dtype, device=device), torch.ones(inner, columns, dtype=dtype, device=device)
    return 2 * rows * inner * columns / best_seconds(lambda: left @ right, device, budget)


def best_seconds(work: Callable[[], object], device: torch.device, budget: float) -> float:
    """Return the shortest of repeated times of ``work``, after one run to warm up, in about ``budget`` seconds.

    Of one thread on a CPU, time that the system gives to other work does not count.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if alone else time.perf_counter

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


def _best_rate(dtype: torch.dtype, device: torch.device) -> float:
    best, end = 0.0, time.perf_counter() + BUDGET
    for shape in SHAPES:
        best = max(best, matmul_rate(shape, dtype, device, BUDGET / len(SHAPES) / 2))
        if time.perf_counter() > end - BUDGET / 3:
            break
    return best
