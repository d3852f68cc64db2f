"""Measure where a training step of each model spends its time, beside the fastest mode of each peer and the machine's limits.

    python -m benchmarks.step_budget [--only transformer-base multi30k gpt2 ...] [--no-compile] [--quick] [--rounds N] [--out FILE]

The limits are the matrix products at the measured peak rate, and the least traffic of the optimizer at the measured bandwidth. A step, and
its share of the peak rate, are timed without the profiler, which slows down steps of many small operations. The parts are those of a step
with it: times that PyTorch's profiler attributes to an operation itself, without the operations that it calls. A graph compiled by
`torch.compile` runs its fused element-wise loops under one name. All systems take turns, round by round, each in a process of its own.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import translation
from benchmarks.families import Family, families, training_systems
from benchmarks.measure import (
    describe_environment,
    faster_peak,
    matmul_workloads,
    peak_flops,
    read_earlier,
    time_interleaved,
    timed,
    write_models,
)
from benchmarks.shapes import BASE, SMALL, Shape
from benchmarks.shapes import TINY as TINY_SHAPE
from benchmarks.translation import Row, print_table, start_workers
from transom.kernels import linear
from transom.kernels.elementwise import call_native
from transom.planning.hardware import PeakRates, measure_peak
from transom.planning.parameters import count_parameters
from transom.planning.precision import choose_threads

ADAM_BYTES = 28
"""Least traffic of Adam per parameter in float32: weight, gradient and two moments are read, and weight and moments are written."""

OUTSIDE = "Python, between operations"
WEIGHT_GRADIENT = "transom::weight_gradient"
"""Profile name of the native weight-gradient products, whose time the profiler would otherwise attribute to their caller."""

KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("optimizer and clipping", ("_fused_adam", "_foreach", "linalg_vector_norm", "clip_grad", "Optimizer")),
    ("products with weights", ("addmm", "aten::mm", "_linear", "_Linears", "convolution", WEIGHT_GRADIENT)),
    ("products of attention", ("bmm",)),
    ("fused attention", ("scaled_dot_product",)),
    ("compiled loops", ("Compiled", "graph_")),
    ("native attention", ("_NativeAttention", "_ShortAttention")),
    ("native kernels", ("_Activation", "_Norm", "_Rotate", "_Dropout", "_FeedForward")),
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


@dataclass(frozen=True)
class StepBudget:
    """Seconds of a training step.

    Attributes:
        seconds: without the profiler.
        parts: with the profiler, by kind of operation.
    """

    seconds: float
    parts: dict[str, float]

    @property
    def profiled_seconds(self) -> float:
        """Seconds of a step with the profiler."""
        return sum(self.parts.values())

    @classmethod
    def middle(cls, rounds: Sequence["StepBudget"]) -> "StepBudget":
        """Return the median seconds without the profiler, and the parts of the round that has the median with it."""
        in_order = sorted(rounds, key=lambda each: each.profiled_seconds)
        return cls(median(each.seconds for each in rounds), in_order[(len(rounds) - 1) // 2].parts)


def measure_step(step: Callable[[], Any]) -> StepBudget:
    """Time a step without the profiler, and another with it."""
    return StepBudget(timed(step)(), profiled(step))


def profiled(step: Callable[[], Any]) -> dict[str, float]:
    """Return the seconds of a profiled step by kind of operation."""

    def record(*arguments: Any) -> None:
        with torch.profiler.record_function(WEIGHT_GRADIENT):
            call_native(*arguments)

    with (
        patch.object(linear, "call_native", record),
        profile(activities=[ProfilerActivity.CPU]) as found,
        torch.profiler.record_function("whole step"),
    ):
        step()
    seconds = Counter[str]()
    for event in found.events():
        if event.device_type.name == "CPU" and not event.name.startswith("ProfilerStep"):
            own = event.self_cpu_time_total * 1e-6
            seconds[OUTSIDE if event.name == "whole step" or event.name.startswith("autograd::") else kind_of(event.name)] += own
    return dict(seconds)


def budget_workloads(module: str, function: str, *arguments: Any) -> dict[str, Callable[[], StepBudget]]:
    """Return by mode a call that measures a round of the training steps that a benchmark's function builds."""
    workloads = getattr(import_module(module), function)(*arguments)
    steps = dict[str, Callable[[], StepBudget]]()
    for key, step in workloads.items():
        name, mode = key if isinstance(key, tuple) else ("training", key)
        if name == "training":
            steps[mode] = partial(measure_step, step)
    return steps


def systems_of(model: Family | Shape, compiled: bool) -> dict[str, tuple[Any, ...]]:
    """Return by system the function that builds its training steps, with its module and arguments."""
    return translation.training_systems(model, compiled) if isinstance(model, Shape) else training_systems(model, compiled)


def measure_steps(
    systems: Mapping[str, tuple[Any, ...]], rounds: int, threads: int, peak: PeakRates
) -> tuple[dict[tuple[str, str], StepBudget], PeakRates]:
    """Measure the training steps of all systems and modes in turns, and the peak rate of products among them."""
    measured: dict[tuple[str, str], list[StepBudget]] = {}

    def measure(name: tuple[str, str], call: Callable[[], tuple[float, StepBudget]]) -> float:
        measured.setdefault(name, []).append(call()[1])
        return measured[name][-1].seconds

    builders = {name: ("benchmarks.step_budget", "budget_workloads", *builder) for name, builder in systems.items()}
    with start_workers(builders, threads) as calls:
        steps = {name: partial(measure, name, call) for name, call in calls.items()}
        timings = time_interleaved({**steps, **matmul_workloads(peak)}, rounds)
    return {name: StepBudget.middle(each[-rounds:]) for name, each in measured.items()}, faster_peak(peak, timings)


def fastest_modes(found: Mapping[tuple[str, str], StepBudget]) -> dict[str, StepBudget]:
    """Return the fastest mode of each system, by "system mode"."""
    systems = dict.fromkeys(system for system, _ in found)
    best = [min((name for name in found if name[0] == system), key=lambda name: found[name].seconds) for system in systems]
    return {" ".join(name): found[name] for name in best}


STEP, PROFILED_STEP, SHARE = "whole step", "sum, with the profiler", "share of the peak rate"
"""Rows of a table. The share is that of ``STEP``."""


def budget_table(model: Family | Shape, found: Mapping[str, StepBudget], peak: PeakRates) -> list[Row]:
    """Print and return milliseconds per step by kind of operation, a column per system and mode."""
    flops = model.training_flops if isinstance(model, Shape) else model.flops.training
    of_products = f"limit: {flops / 1e9:,.0f} GFLOP of products at the peak rate"
    adam_bytes = count_parameters(model.config).total * ADAM_BYTES
    kinds = [kind for kind, _ in KINDS] + ["element-wise", OUTSIDE]
    rates = {name: peak_flops(peak, "fp32" if "fp32" in name else "bf16") for name in found}
    rows: dict[str, dict[str, Any]] = {
        **{kind: {name: _milliseconds(each.parts.get(kind, 0.0)) for name, each in found.items()} for kind in kinds},
        PROFILED_STEP: {name: _milliseconds(each.profiled_seconds) for name, each in found.items()},
        STEP: {name: _milliseconds(each.seconds) for name, each in found.items()},
        of_products: {name: _milliseconds(flops / rate) for name, rate in rates.items()},
        f"limit: {adam_bytes / 2**20:,.0f} MiB of the optimizer": dict.fromkeys(found, _milliseconds(adam_bytes / peak.bandwidth)),
        SHARE: {name: f"{flops / each.seconds / rates[name]:.0%}" for name, each in found.items()},
    }
    return print_table(f"{model.name}: a training step", [{"milliseconds per step": label} | row for label, row in rows.items()])


def _milliseconds(seconds: float) -> float:
    return round(1e3 * seconds, 1)


def main(arguments: list[str] | None = None) -> None:
    """Measure the selected families, print their tables and write the results as JSON."""
    args = _parser().parse_args(arguments)
    threads, peak = choose_threads().count, measure_peak()
    torch.set_num_threads(threads)
    environment = describe_environment(" ".join(["python -m benchmarks.step_budget", *(arguments or sys.argv[1:])]), threads, peak)
    print(json.dumps(environment, indent=1))
    result = read_earlier(args.out, environment)
    for model in models(args.quick):
        if not args.only or model.name in args.only:
            found, peak_now = measure_steps(systems_of(model, not args.no_compile), args.rounds, threads, peak)
            result[model.name] = {
                "facts": environment,
                "steps": {" ".join(name): asdict(each) for name, each in found.items()},
                "table": budget_table(model, fastest_modes(found), peak_now),
            }
            write_models(args.out, result, MODELS)


def models(quick: bool) -> list[Family | Shape]:
    """Return the models whose training steps are measured; ``quick`` shapes are tiny."""
    translators = [replace(TINY_SHAPE, name=shape.name) if quick else shape for shape in (BASE, SMALL)]
    return [*translators, *families(quick)]


MODELS = [model.name for model in models(quick=True)]


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_budget", description=__doc__, formatter_class=form)
    parser.add_argument(
        "--only", nargs="+", choices=MODELS, help="models to measure (default: all); results of the others in the file are kept"
    )
    parser.add_argument("--no-compile", action="store_true", help="skip the torch.compile modes")
    parser.add_argument("--quick", action="store_true", help="check that everything runs, with tiny shapes and meaningless figures")
    parser.add_argument("--rounds", type=int, default=5, help="timed steps per system, and profiled ones")
    parser.add_argument("--out", type=Path, help="JSON file to write the results to")
    return parser


if __name__ == "__main__":
    main()
