"""Time several systems in turn and record the machine and versions of a measurement."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch

from transom.planning.hardware import PeakRates

LIBRARIES = ("torch", "transformers", "ctranslate2")
"""Libraries whose versions are recorded with a measurement."""

CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
"""Instruction sets that determine the speed of bfloat16 and int8 products."""

SQUARE = 2048
"""Rows, inner size and columns of the products that measure the peak rate in turns with workloads."""

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles of repeated timings, in seconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Quartiles":
        """Compute the quartiles of timings."""
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
        return cls(median, low, high)


def time_interleaved(systems: Mapping[Name, Callable[[], float]], rounds: int, n_warmup: int = 1) -> dict[Name, Quartiles]:
    """Time every system once per round, so that a change in the machine's speed affects all systems alike.

    Args:
        systems: name to a workload that returns its duration in seconds.
        rounds: number of timings per system.
        n_warmup: number of runs per system before the timing starts.
    """
    for workload in systems.values():
        for _ in range(n_warmup):
            workload()
    seconds: dict[Name, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, workload in systems.items():
            seconds[name].append(workload())
    return {name: Quartiles.of(times) for name, times in seconds.items()}


def matmul_workloads(peak: PeakRates) -> dict[torch.dtype, Callable[[], float]]:
    """Return by dtype a matrix product that returns its duration, to be timed in turns with other workloads (``faster_peak``)."""
    return {dtype: timed(partial(torch.matmul, *torch.ones(2, SQUARE, SQUARE, dtype=dtype))) for dtype in peak.flops}


def faster_peak(peak: PeakRates, timings: Mapping[torch.dtype, Quartiles]) -> PeakRates:
    """Return ``peak``, or the rates of the faster quarter of the products of ``matmul_workloads`` where these are higher.

    A processor's clock may rise within minutes, when others on the same machine come to rest.

    >>> seconds = Quartiles(1.0, 0.5, 2.0)
    >>> faster_peak(PeakRates({torch.float32: 1e9}, 1e9), {torch.float32: seconds}).flops[torch.float32] == 2 * 2048**3 / 0.5
    True
    """
    rates = {dtype: max(rate, 2 * SQUARE**3 / timings[dtype].low) for dtype, rate in peak.flops.items()}
    return PeakRates(rates, peak.bandwidth)


def peak_flops(peak: PeakRates, mode: str) -> float:
    """Return the peak rate for a mode's matrix products: that of float32, or for shorter types the higher one of float32 and bfloat16."""
    exact = peak.flops[torch.float32]
    return exact if mode.startswith(("fp32", "float32")) else max(exact, peak.flops[torch.bfloat16])


def timed(workload: Callable[[], object]) -> Callable[[], float]:
    """Wrap a workload so that it returns its duration in seconds."""

    def run() -> float:
        start = time.perf_counter()
        workload()
        return time.perf_counter() - start

    return run


RESTRICTION = "TRANSOM_BENCHMARK_RESTRICTION"
"""Environment variable in which ``benchmarks.restricted`` notes the command that restricts the processor."""


def describe_environment(command: str, threads: int, peak: PeakRates, libraries: Sequence[str] = LIBRARIES) -> dict[str, object]:
    """Return the date, command, machine, versions of the installed libraries and peak rates of a measurement."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join(filter(None, (os.environ.get(RESTRICTION), command))),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: found for name in libraries if (found := _version(name))},
        "matmul_gflops": {str(dtype).removeprefix("torch."): round(flops / 1e9) for dtype, flops in peak.flops.items()},
        "read_gbytes": round(peak.bandwidth / 1e9, 1),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = [flag for flag in CPU_FLAGS if flag in found.get("flags", "").split()]
    name = found.get("model name") or platform.processor() or platform.machine()
    return f"{name}, family {found.get('cpu family', '?')}, model {found.get('model', '?')}: {' '.join(flags)}"


def write_result(path: Path | None, result: dict[str, Any]) -> None:
    """Write the result of a benchmark as JSON, and say where; nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"written: {path}")


def read_earlier(path: Path | None, environment: dict[str, Any]) -> dict[str, Any]:
    """Return the results of earlier runs in a file, by model: nothing without a file, or if they are of another kind of processor."""
    earlier: dict[str, Any] = {} if path is None or not path.exists() else json.loads(path.read_text(encoding="utf-8"))
    return {name: each for name, each in earlier.items() if each["facts"]["processor"] == environment["processor"]}


def write_models(path: Path | None, result: dict[str, Any], order: Sequence[str]) -> None:
    """Write results by model in a fixed order; called after each model, so that a later failure keeps the results before it."""
    write_result(path, {name: result[name] for name in order if name in result})


def append_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Append records to a JSON file of results."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*before, *records], indent=1) + "\n", encoding="utf-8")


def format_mean_and_std(values: list[float], digits: int = 2) -> str:
    """Format values with their mean and standard deviation, as in ``1.00, 2.00; mean 1.50, std 0.71``."""
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    shown = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{shown}; mean {statistics.fmean(values):.{digits}f}, std {std:.{digits}f}"
