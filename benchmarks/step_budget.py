"""Measure where a training step of each family spends its time, beside the transformers library's fastest modes and the machine's limits.

    python -m benchmarks.step_budget [--only gpt2 gpt-384 llama bert vit] [--no-compile] [--quick] [--rounds N] [--out FILE]

The limits are the matrix products at the measured peak rate, and the least traffic of the optimizer at the measured bandwidth. Times are
those that PyTorch's profiler attributes to an operation itself, without the operations that it calls. A graph compiled by `torch.compile`
runs its fused element-wise loops under one name. All systems are profiled in turn, each in a process of its own.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.families import Family, families, transformers_workloads, transom_workloads
from benchmarks.measure import describe_environment, write_result
from benchmarks.translation import Row, print_table, start_workers
from transom.planning.hardware import PeakRates, measure_peak
from transom.planning.parameters import count_parameters
from transom.planning.precision import choose_threads

ADAM_BYTES = 28
"""Least traffic of Adam per parameter in float32: weight, gradient and two moments are read, and weight and moments are written."""

OUTSIDE = "Python, between operations"
KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("optimizer and clipping", ("_fused_adam", "_foreach", "linalg_vector_norm", "clip_grad", "Optimizer")),
    ("products with weights", ("addmm", "aten::mm", "_linear", "convolution")),
    ("products of attention", ("bmm",)),
    ("fused attention", ("scaled_dot_product",)),
    ("compiled loops", ("Compiled", "graph_")),
    ("native kernels", ("_Activation", "_Norm", "_Rotate", "_Dropout", "_NativeAttention", "_ShortAttention", "_FeedForward")),
    ("softmax and loss", ("softmax", "nll_loss", "cross_entropy", "CrossEntropy")),
    ("norms", ("layer_norm", "rms_norm")),
    ("copies and casts", ("copy_", "_to_copy", "clone", "cat", "contiguous", "fill_", "zero_", "empty")),
)
"""Kind of an operation by a part of its name; the first that fits counts, and all others are element-wise."""


def kind_of(operation: str) -> str:
    """Return the kind of an operation by its name.

    >>> kind_of("aten::addmm"), kind_of("aten::bmm"), kind_of("aten::mul")
    ('products with weights', 'products of attention', 'element-wise')
    """
    return next((kind for kind, parts in KINDS if any(part in operation for part in parts)), "element-wise")


def profiled(step: Callable[[], Any], rounds: int) -> dict[str, float]:
    """Return the seconds of a step by kind of operation: the mean of ``rounds`` profiled steps, after one that is not."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(rounds):
            with torch.profiler.record_function("whole step"):
                step()
    seconds = Counter[str]()
    for event in found.events():
        if event.device_type.name == "CPU" and not event.name.startswith("ProfilerStep"):
            own = event.self_cpu_time_total * 1e-6 / rounds
            seconds[OUTSIDE if event.name == "whole step" or event.name.startswith("autograd::") else kind_of(event.name)] += own
    return dict(seconds)


def budget_workloads(system: str, family: Family, rounds: int, compiled: bool) -> dict[str, Callable[[], dict[str, float]]]:
    """Return by mode a call that profiles training steps of a system, "transom" or "transformers"."""
    workloads = transom_workloads(family) if system == "transom" else transformers_workloads(family, compiled)
    return {mode: lambda step=step: profiled(step, rounds) for (name, mode), step in workloads.items() if name == "training"}  # type: ignore[misc]


def budget_table(family: Family, rounds: int, threads: int, compiled: bool, peak: PeakRates) -> list[Row]:
    """Profile the systems of a family; return milliseconds per step by kind of operation, a column per system and mode."""
    systems = {name: ("benchmarks.step_budget", "budget_workloads", name, family, rounds, compiled) for name in ("transom", "transformers")}
    with start_workers(systems, threads) as calls:
        found = {f"{system} {mode}": call()[1] for (system, mode), call in calls.items()}
    kinds = [kind for kind, _ in KINDS] + ["element-wise", OUTSIDE]
    rows: list[Row] = [
        {"milliseconds per step": kind} | {name: round(1e3 * each.get(kind, 0.0), 1) for name, each in found.items()} for kind in kinds
    ]
    whole = {name: sum(each.values()) for name, each in found.items()}
    rows.append({"milliseconds per step": "whole step"} | {name: round(1e3 * seconds, 1) for name, seconds in whole.items()})
    rates = {name: peak.flops[torch.float32 if "fp32" in name else torch.bfloat16] for name in found}
    rows.append(
        {"milliseconds per step": "limit: products at the peak rate"}
        | {name: round(1e3 * family.flops.training / rate, 1) for name, rate in rates.items()}
    )
    optimizer = 1e3 * count_parameters(family.config).total * ADAM_BYTES / peak.bandwidth
    rows.append({"milliseconds per step": "limit: traffic of the optimizer"} | dict.fromkeys(found, round(optimizer, 1)))
    share = {name: f"{family.flops.training / seconds / rates[name]:.0%}" for name, seconds in whole.items()}
    rows.append({"milliseconds per step": "share of the peak rate"} | share)
    return print_table(f"{family.name}: a training step", rows)


def main(arguments: list[str] | None = None) -> None:
    """Profile the selected families, print their tables and write the results as JSON."""
    args = _parser().parse_args(arguments)
    threads, peak = choose_threads().count, measure_peak()
    torch.set_num_threads(threads)
    environment = describe_environment(" ".join(["python -m benchmarks.step_budget", *(arguments or sys.argv[1:])]), threads, peak)
    print(json.dumps(environment, indent=1))
    chosen = [family for family in families(args.quick) if family.name in (args.only or TRAINED)]
    result: dict[str, Any] = {"facts": environment}
    result["families"] = {family.name: budget_table(family, args.rounds, threads, not args.no_compile, peak) for family in chosen}
    result["load_after"] = round(os.getloadavg()[0], 2)
    write_result(args.out, result)


TRAINED = [family.name for family in families(quick=True) if family.trains]


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_budget", description=__doc__, formatter_class=form)
    parser.add_argument("--only", nargs="+", choices=TRAINED, help="families to profile (default: all)")
    parser.add_argument("--no-compile", action="store_true", help="skip the torch.compile modes")
    parser.add_argument("--quick", action="store_true", help="check that everything runs, with tiny shapes and meaningless figures")
    parser.add_argument("--rounds", type=int, default=3, help="profiled steps per system")
    parser.add_argument("--out", type=Path, help="JSON file to write the results to")
    return parser


if __name__ == "__main__":
    main()
