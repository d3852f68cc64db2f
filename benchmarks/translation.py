"""Measure training, translation and start-up speed of transom and its peers, in one run and at equal shapes.

    python -m benchmarks.translation [--train] [--decode] [--start] [--quick] [--rounds N] [--out FILE]

benchmarks/README.md defines the measurements.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import startup
from benchmarks.measure import Quartiles, describe_environment, peak_flops, time_interleaved, timed, write_result
from benchmarks.shapes import BASE, SMALL, TINY, Shape, Task, tasks
from benchmarks.worker import Worker
from transom.planning.hardware import PeakRates, measure_peak
from transom.planning.precision import choose_threads

BYTES_PER_WEIGHT = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "int8": 1, "int16": 2}
"""Bytes per weight in memory, by the first word of a mode."""

TimedCall = Callable[[], tuple[float, Any]]
"""A call that runs a workload once and returns its duration in seconds and its result."""

Row = dict[str, object]


def main(arguments: list[str] | None = None) -> None:
    """Run the selected measurements, print their tables and write the results as JSON."""
    args = _parser().parse_args(arguments)
    everything = not (args.train or args.decode or args.start)
    threads = args.threads or choose_threads().count
    torch.set_num_threads(threads)
    peak = measure_peak()
    result: dict[str, object] = {
        "facts": describe_environment(" ".join(["python -m benchmarks.translation", *(arguments or sys.argv[1:])]), threads, peak)
    }
    print(json.dumps(result["facts"], indent=1))
    if args.start or everything:
        result["start"] = start_table(args.rounds or (2 if args.quick else 7), TINY if args.quick else BASE)
    if args.train or everything:
        shapes = (TINY,) if args.quick else (BASE, SMALL)
        result["train"] = {shape.name: training_table(shape, args.rounds, peak, threads, not args.no_compile) for shape in shapes}
    if args.decode or everything:
        result["decode"] = decoding_tables(TINY if args.quick else BASE, args.rounds, peak, threads)
    result["load_after"] = round(os.getloadavg()[0], 2)
    write_result(args.out, result)


def training_systems(shape: Shape, compiled: bool) -> dict[str, tuple[Any, ...]]:
    """Return by system the function that builds its training steps, with its module and arguments."""
    return {
        "transom": ("benchmarks.ours", "training_steps", shape),
        "transformers Marian": ("benchmarks.peers.marian", "training_steps", shape, compiled),
        "torch.nn.Transformer": ("benchmarks.peers.torch_transformer", "training_steps", shape, compiled),
    }


def training_table(shape: Shape, rounds: int | None, peak: PeakRates, threads: int, compiled: bool) -> list[Row]:
    """Time a training step of every system, in target tokens per second, and measure its memory."""
    systems = training_systems(shape, compiled)
    with start_workers(systems, threads) as timed_calls:
        first = {name: timed_call()[1] for name, timed_call in timed_calls.items()}
        quartiles_of = time_interleaved({name: seconds_of(timed_call) for name, timed_call in timed_calls.items()}, rounds or 5)
    rows = []
    for (system, mode), quartiles in quartiles_of.items():
        rate = shape.training_flops / quartiles.median
        rows.append(
            row(system, mode, shape.training_tokens, quartiles)
            | {
                "matmul_utilization": round(rate / peak_flops(peak, mode), 3),
                "bandwidth_utilization": round(shape.training_bytes / quartiles.median / peak.bandwidth, 3),
                "first_loss": round(first[system, mode], 3),
                "step_memory_MiB": step_memory(systems[system], mode, threads),
            }
        )
    return print_table(f"training {shape.name}: {shape.pairs} pairs of {shape.source} and {shape.target} tokens", with_ratios(rows))


def step_memory(builder: tuple[Any, ...], workload: Any, threads: int) -> int:
    """Return the MiB that a training step holds at most beyond what its process held before, in a process of its own."""
    with Worker(*builder, threads=threads, only=workload) as worker:
        return round(worker.measure_memory(workload) / 2**20)


def decoding_tables(shape: Shape, rounds: int | None, peak: PeakRates, threads: int) -> dict[str, list[Row]]:
    """Time every system's translation, in generated tokens per second."""
    tables = {}
    systems = {
        "transom": ("benchmarks.ours", "translators", tasks(shape)),
        "CTranslate2": ("benchmarks.peers.ct2", "translators", tasks(shape), threads),
        "transformers Marian": ("benchmarks.peers.marian", "translators", tasks(shape)),
    }
    with start_workers(systems, threads) as timed_calls:
        for task in tasks(shape):
            task_calls = {
                (system, mode): seconds_of(timed_call) for (system, (name, mode)), timed_call in timed_calls.items() if name == task.name
            }
            quartiles_of = time_interleaved(task_calls, rounds or task.rounds)
            rows = [decoding_row(task, system, mode, quartiles, peak) for (system, mode), quartiles in quartiles_of.items()]
            tables[task.name] = print_table(f"translating {shape.name}: {task.name}", with_ratios(rows))
    return tables


@contextmanager
def start_workers(systems: Mapping[str, tuple[Any, ...]], threads: int) -> Iterator[dict[tuple[str, Any], TimedCall]]:
    """Start one process per system; yield the timed calls by (system, workload).

    Args:
        systems: system to (module, function, *arguments) of the function that builds its workloads.
        threads: torch threads per process.
    """
    with ExitStack() as stack:
        timed_calls: dict[tuple[str, Any], TimedCall] = {}
        for system, builder in systems.items():
            worker = stack.enter_context(Worker(*builder, threads=threads))
            timed_calls |= {(system, name): partial(worker.run_once, name) for name in worker.names}
        yield timed_calls


def seconds_of(timed_call: TimedCall) -> Callable[[], float]:
    """Return a call that returns only the seconds of a timed call."""
    return lambda: timed_call()[0]


def decoding_row(task: Task, system: str, mode: str, quartiles: Quartiles, peak: PeakRates) -> Row:
    """Return the speed of a translation workload and its utilization of the machine."""
    kind = mode.replace("_", " ").replace(",", " ").split()[0]
    return row(system, mode, task.tokens, quartiles) | {
        "matmul_utilization": round(task.flops / quartiles.median / peak_flops(peak, mode), 3),
        "bandwidth_utilization": round(task.bytes_read(BYTES_PER_WEIGHT[kind]) / quartiles.median / peak.bandwidth, 3),
    }


def start_table(rounds: int, shape: Shape) -> list[Row]:
    """Time whole processes, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        quartiles_of = time_interleaved(
            {name: timed(run) for name, run in startup.commands(startup.make_run(Path(folder), shape.config)).items()}, rounds
        )
    rows: list[Row] = [
        {"command": name, "seconds": round(s.median, 3), "low": round(s.low, 3), "high": round(s.high, 3)}
        for name, s in quartiles_of.items()
    ]
    return print_table(f"start, {shape.name}", rows)


def row(system: str, mode: str, tokens: int, quartiles: Quartiles) -> Row:
    """Convert timings of a workload of ``tokens`` tokens to tokens per second."""
    return {
        "system": system,
        "mode": mode,
        "tokens_per_second": round(tokens / quartiles.median, 1),
        "low": round(tokens / quartiles.high, 1),
        "high": round(tokens / quartiles.low, 1),
    }


def with_ratios(rows: list[Row]) -> list[Row]:
    """Add the ratio of each system's speed to the fastest mode of the fastest peer."""
    best = max(float(str(r["tokens_per_second"])) for r in rows if r["system"] != "transom")
    return [r | {"ratio_to_best_peer": round(float(str(r["tokens_per_second"])) / best, 2)} for r in rows]


def print_table(title: str, rows: list[Row]) -> list[Row]:
    """Print a table and return its rows."""
    names = list(rows[0])
    widths = [max(len(str(r[name])) for r in [*rows, dict(zip(names, names, strict=True))]) for name in names]
    print(f"\n{title}")
    for line in ([*names], *([str(r[name]) for name in names] for r in rows)):
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(), flush=True)
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.translation", description=__doc__)
    parser.add_argument(
        "--train", action="store_true", help="measure training; without --train, --decode and --start, all three are measured"
    )
    parser.add_argument("--decode", action="store_true", help="measure translation")
    parser.add_argument("--start", action="store_true", help="measure start-up time")
    parser.add_argument("--quick", action="store_true", help="check that everything runs, with tiny shapes and meaningless figures")
    parser.add_argument("--no-compile", action="store_true", help="skip the peers' torch.compile modes")
    parser.add_argument("--rounds", type=int, help="timings per system")
    parser.add_argument("--threads", type=int, help="threads per system (default: transom's choice)")
    parser.add_argument("--out", type=Path, help="JSON file to write the results to")
    return parser


if __name__ == "__main__":
    main()
