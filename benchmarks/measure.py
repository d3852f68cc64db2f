"""Timing several systems side by side, and the facts without which a figure means nothing."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from transom.planning.hardware import PeakRates

CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
"""What decides how fast a processor multiplies short types."""

Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True)
class Quartiles:
    """The median of repeated times and their quartiles, in seconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Quartiles":
        """Summarise times."""
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
        return cls(median, low, high)


def time_interleaved(systems: Mapping[Name, Callable[[], float]], rounds: int, n_warmup: int = 1) -> dict[Name, Quartiles]:
    """Time every system once a round, so that a change in the machine's speed meets all of them.

    Args:
        systems: name to the work, which returns the seconds it took.
        rounds: how often each is timed.
        n_warmup: how often each is run before.
    """
    for work in systems.values():
        for _ in range(n_warmup):
            work()
    seconds: dict[Name, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, work in systems.items():
            seconds[name].append(work())
    return {name: Quartiles.of(times) for name, times in seconds.items()}


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """Make work return its seconds."""

    def run() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return run


def describe_environment(command: str, threads: int, peak: PeakRates) -> dict[str, object]:
    """Say when, where and with what it is measured."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: found for name in ("torch", "transformers", "ctranslate2") if (found := _version(name))},
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


def append_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Write records behind those that a file of results has."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*before, *records], indent=1) + "\n", encoding="utf-8")


def format_mean_and_std(values: list[float], digits: int = 2) -> str:
    """Name values, their mean and their standard deviation."""
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    shown = ", ".join(f"{value:.{digits}f}" for value in values)
    return f"{shown}; mean {statistics.fmean(values):.{digits}f}, spread {std:.{digits}f}"
