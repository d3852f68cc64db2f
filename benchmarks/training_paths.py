"""Measure training steps computed by native kernels, by ``torch.compile`` and by PyTorch's operations.

    python -m benchmarks.training_paths [--only gpt2 gpt-384 llama gpt2-small bert vit] [--quick] [--rounds N] [--out FILE]

The native kernels are those of `transom/kernels` that `transom kernels` lists for this machine. `torch.compile` is
`training.compile = "on"`, and PyTorch's operations are `TRANSOM_KERNELS=reference`. All paths take turns, round by round, each in a process
of its own. Compilation is not timed in the steps: `first step` is the duration of the step that compiles.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.families import FAMILIES, Family, build_batch, families, training_step
from benchmarks.measure import describe_environment, read_earlier, time_interleaved, write_models
from benchmarks.translation import Row, print_table, seconds_of, start_workers
from transom.kernels.kernel_registry import KERNELS_VARIABLE
from transom.models.build import build_model
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_precision, choose_threads
from transom.training.compilation import compile_training_passes

NATIVE, COMPILED, REFERENCE = "native kernels", "torch.compile", "PyTorch's operations"
PATHS = NATIVE, COMPILED, REFERENCE

MAX_LOSS_DIFFERENCE = 0.01
"""Maximum relative difference between the first losses of two paths; a larger one means that they compute different things."""


def path_workloads(family: Family, path: str) -> dict[str, Callable[[], float]]:
    """Return the training step of a path, by precision. The environment of the process stays changed."""
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # the first step compiles, whatever ran before
    if path == REFERENCE:
        os.environ[KERNELS_VARIABLE] = "reference"
    torch.manual_seed(1)
    model, precision = build_model(family.config), choose_precision("auto", torch.device("cpu"))
    if path == COMPILED:
        compile_training_passes(model)
    return {precision.name: training_step(model, build_batch(family), family.training, precision.dtype)}


def measure_family(family: Family, rounds: int, threads: int) -> Row:
    """Time the training steps of all paths in turns; return their milliseconds.

    Raises:
        RuntimeError: the first losses of two paths differ.
    """
    systems = {path: ("benchmarks.training_paths", "path_workloads", family, path) for path in PATHS}
    with start_workers(systems, threads) as calls:
        ((_, mode), *_) = calls
        first = {path: call() for (path, _), call in calls.items()}
        losses = [loss for _, loss in first.values()]
        if max(losses) - min(losses) > MAX_LOSS_DIFFERENCE * max(losses):
            raise RuntimeError(f"{family.name}: expected equal first losses, found {dict(zip(PATHS, losses, strict=True))}")
        seconds = time_interleaved({path: seconds_of(call) for (path, _), call in calls.items()}, rounds)
    fastest = min(PATHS, key=lambda path: seconds[path].median)
    medians = {path: round(1e3 * seconds[path].median, 1) for path in PATHS}
    quartiles = {f"{path}, quartiles": f"{1e3 * seconds[path].low:.0f} to {1e3 * seconds[path].high:.0f}" for path in PATHS}
    compiling = {"first step, compiled": round(1e3 * first[COMPILED][0])}
    return {"family": family.name, "precision": mode, **medians, **quartiles, **compiling, "fastest": fastest}


def main(arguments: list[str] | None = None) -> None:
    """Measure the selected families, print a table and write the results as JSON."""
    args = _parser().parse_args(arguments)
    threads, peak = choose_threads().count, measure_peak()
    torch.set_num_threads(threads)
    environment = describe_environment(" ".join(["python -m benchmarks.training_paths", *(arguments or sys.argv[1:])]), threads, peak)
    print(json.dumps(environment, indent=1))
    result = read_earlier(args.out, environment)
    for family in families(args.quick):
        if not args.only or family.name in args.only:
            rows = print_table(f"{family.name}: milliseconds per training step", [measure_family(family, args.rounds, threads)])
            result[family.name] = {"facts": environment, "row": rows[0]}
            write_models(args.out, result, FAMILIES)


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training_paths", description=__doc__, formatter_class=form)
    parser.add_argument("--only", nargs="+", choices=FAMILIES, help="families to measure (default: all)")
    parser.add_argument("--quick", action="store_true", help="check that everything runs, with tiny shapes and meaningless figures")
    parser.add_argument("--rounds", type=int, default=5, help="timed steps per path")
    parser.add_argument("--out", type=Path, help="JSON file of the results, which keeps other families of this processor")
    return parser


if __name__ == "__main__":
    main()
