"""Measure training steps of layouts of two processes beside one process with two threads, the overhead, and the cost of checkpoints.

    python -m benchmarks.layouts [--quick] [--rounds N] [--out FILE]

A step is one of ``TrainStep``: forward and backward pass, sum of gradients, clipping and update. Its overhead in one process is measured
against a loop of PyTorch's own functions. Each layout divides the same batch, with one thread per process. Beside each is the time that
``transom rehearse`` predicts. It takes the utilization from two processes that each train on half the batch and exchange nothing, so that
prediction and measurement differ by collectives and waiting only.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.collectives import SIZES, collectives_table
from benchmarks.measure import Quartiles, describe_environment, time_interleaved, write_result
from benchmarks.ours import fresh_model, training_batch
from benchmarks.shapes import BASE, LEARNING_RATE, SMALL, TINY, TRAINING, Shape
from benchmarks.translation import print_table, row
from benchmarks.worker import Worker
from transom.checkpoints.checkpoint import Checkpoints
from transom.config.parallel import ParallelConfig
from transom.config.training import TextTrainingConfig
from transom.data.batch import take_rows
from transom.layers.dropout import keyed_dropout, name_dropout_sites
from transom.parallel.layouts import apply_layout
from transom.parallel.local_pieces import local_pieces
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import SINGLE_PROCESS, join_process_group
from transom.parallel.shared_checkpoints import SharedCheckpoints
from transom.planning.cluster import GLOO, GLOO_EFFICIENCY, Cluster
from transom.planning.hardware import measure_peak
from transom.planning.layout import format_layout
from transom.planning.parameters import count_parameters
from transom.planning.precision import choose_precision
from transom.training.objectives.objective import CrossEntropy, forward_pass
from transom.training.optimizer import build_optimizer, split_groups_by_mesh
from transom.training.rehearse import RehearsalOptions, rehearse
from transom.training.train_state import optimizer_tensors, trainable_tensors
from transom.training.train_step import TrainStep

LAYOUTS = [ParallelConfig(**{axis: 2}) for axis in ("data", "shard", "tensor", "context", "pipeline")]
_GROUP = ExitStack()
"""The process group of a rank, which it leaves when the benchmark ends it."""

ONE_PROCESS = "1 process, 2 threads"
ALONE = "2 processes, half a batch each, alone"


def main(arguments: list[str] | None = None) -> None:
    """Measure the shapes, print their tables and write the results as JSON."""
    args = _parser().parse_args(arguments)
    torch.set_num_threads(2)
    peak = measure_peak()
    result: dict[str, Any] = {
        "facts": describe_environment(" ".join(["python -m benchmarks.layouts", *(arguments or sys.argv[1:])]), 2, peak)
    }
    print(json.dumps(result["facts"], indent=1))
    rate = peak.flops[choose_precision("auto", torch.device("cpu")).dtype]
    shapes = (TINY,) if args.quick else (SMALL, BASE)
    result["collectives"] = collectives_table(3 * args.rounds, SIZES[:1] if args.quick else SIZES)
    result["overhead"] = {shape.name: overhead(replace(shape, source=shape.target), 3 * args.rounds) for shape in shapes}
    result["checkpoints"] = [checkpoint_row(shape, args.rounds) for shape in shapes]
    print_table("checkpoints of one process, seconds", result["checkpoints"])
    result["train"] = {shape.name: layout_table(replace(shape, source=shape.target), args.rounds, rate) for shape in shapes}
    result["load_after"] = round(os.getloadavg()[0], 2)
    write_result(args.out, result)


def overhead(shape: Shape, rounds: int) -> dict[str, float]:
    """Time a step of ``TrainStep`` in one process beside a plain PyTorch loop over the same model and loss, in turns.

    Returns:
        Median and quartiles of the ratio of their seconds in each round.
    """
    with Worker("benchmarks.layouts", "plain_steps", shape, threads=2) as plain, ranks_of(shape, ParallelConfig(), threads=2) as step:
        for _ in range(2):
            plain.run_once("step"), step()
        ratios = Quartiles.of([step() / plain.run_once("step")[0] for _ in range(rounds)])
    print(f"\n{shape.name}: seconds of TrainStep / plain loop {ratios.median:.3f}, quartiles {ratios.low:.3f} and {ratios.high:.3f}")
    return {"median": round(ratios.median, 4), "low": round(ratios.low, 4), "high": round(ratios.high, 4)}


def checkpoint_row(shape: Shape, rounds: int) -> dict[str, Any]:
    """Save checkpoints of weights and Adam's state while training continues.

    Returns:
        Medians in seconds: the pause of the training, the time until the checkpoint is durable, and a step without and during the writing.
    """
    with tempfile.TemporaryDirectory() as folder, Worker("benchmarks.layouts", "saving_steps", shape, Path(folder), threads=2) as worker:
        timings = [worker.run_once("save")[1] for _ in range(rounds + 1)][1:]
    names = ("pause", "until_durable", "step_alone", "step_during_writing")
    medians = {name: round(statistics.median(each), 3) for name, each in zip(names, zip(*timings, strict=True), strict=True)}
    n_bytes = 3 * 4 * count_parameters(shape.config).total
    return {"shape": shape.name, "megabytes": round(n_bytes / 1e6), **medians}


def layout_table(shape: Shape, rounds: int, rate: float) -> list[dict[str, object]]:
    """Time a training step in each layout, and predict it.

    Args:
        shape: model and batch.
        rounds: timings per layout.
        rate: peak rate of the matrix products of two threads in FLOP/s.
    """
    with ExitStack() as stack:
        systems = {ONE_PROCESS: stack.enter_context(ranks_of(shape, ParallelConfig(), threads=2))}
        for name, layout in {ALONE: None, **{format_layout(layout): layout for layout in LAYOUTS}}.items():
            systems[name] = stack.enter_context(ranks_of(shape, layout))
        quartiles_of = time_interleaved(systems, rounds)
    utilization = shape.training_flops / (rate * quartiles_of[ALONE].median)
    cluster = Cluster("CPU process", rate / 2, 2**40, 2, GLOO, GLOO, utilization, "measured", GLOO_EFFICIENCY, overlaps=False)
    predicted = {ONE_PROCESS: None, ALONE: None} | {
        format_layout(layout): rehearse(
            shape.name,
            shape.config,
            TextTrainingConfig(batch_tokens=shape.training_tokens),
            layout,
            RehearsalOptions(cluster, shape.target),
        ).seconds.total
        for layout in LAYOUTS
    }
    rows = []
    for name, quartiles in quartiles_of.items():
        ratio, seconds = quartiles_of[ONE_PROCESS].median / quartiles.median, predicted[name]
        measured = row("transom", name, shape.training_tokens, quartiles) | {"ratio_to_one_process": round(ratio, 2)}
        rows.append(measured | {"predicted_over_measured": "" if seconds is None else round(seconds / quartiles.median, 2)})
    return print_table(f"training {shape.name}: {shape.pairs} pairs of {shape.source} and {shape.target} tokens", rows)


@contextmanager
def ranks_of(shape: Shape, layout: ParallelConfig | None, threads: int = 1) -> Iterator[Callable[[], float]]:
    """Start a process per rank; yield a function that takes a step on all of them and returns the seconds of the slowest.

    Args:
        shape: model and batch.
        layout: how the ranks divide them; None for two processes that take half of the batch each and exchange nothing.
        threads: threads per process.
    """
    size = 2 if layout is None else layout.n_processes
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pool = stack.enter_context(ThreadPoolExecutor(size))

        def start(rank: int) -> Worker:
            return Worker("benchmarks.layouts", "training_steps", shape, layout, rank, folder / "store", threads=threads)

        workers = [stack.enter_context(worker) for worker in pool.map(start, range(size))]
        yield lambda: max(seconds for seconds, _ in pool.map(lambda worker: worker.run_once("step"), workers))


def saving_steps(shape: Shape, folder: Path) -> dict[str, Callable[[], tuple[float, ...]]]:
    """Return a workload that saves a checkpoint while it takes steps; it returns the times of ``checkpoint_row``."""
    model, batch, saved = fresh_model(shape).train(), training_batch(shape), list[int]()
    optimizer, dtype = build_optimizer(model, TRAINING.optimizer), choose_precision("auto", torch.device("cpu")).dtype
    train_step = TrainStep(model, optimizer, TRAINING, dtype, CrossEntropy(TRAINING.label_smoothing))
    checkpoints = SharedCheckpoints(Checkpoints(folder / "checkpoints"), SINGLE_PROCESS, saved.append)

    def step() -> float:
        start = time.perf_counter()
        train_step.step([batch], LEARNING_RATE)
        return time.perf_counter() - start

    def save() -> tuple[float, ...]:
        alone, during = step(), list[float]()
        tensors = {"model": trainable_tensors(model), "optimizer": optimizer_tensors(model, optimizer)}
        saved.clear()
        start = time.perf_counter()
        checkpoints.save(train_step.n_steps, {name: local_pieces(each) for name, each in tensors.items()}, {})
        pause = time.perf_counter() - start
        while not saved:
            during.append(step())
            checkpoints.check()
        return pause, time.perf_counter() - start, alone, statistics.fmean(during)

    return {"save": save}


def plain_steps(shape: Shape) -> dict[str, Callable[[], float]]:
    """Return a training step as a loop of PyTorch's own functions, which returns the mean loss."""
    model, batch, objective = fresh_model(shape).train(), training_batch(shape), CrossEntropy(TRAINING.label_smoothing)
    optimizer, dtype = build_optimizer(model, TRAINING.optimizer), choose_precision("auto", torch.device("cpu")).dtype
    name_dropout_sites(model)
    numbers = count()

    def step() -> float:
        with keyed_dropout(TRAINING.seed, next(numbers), 1), torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            loss = objective.loss(forward_pass(model, batch, [])).backward_loss / batch.n_target_tokens
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), TRAINING.max_grad_norm or float("inf"))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return {"step": step}


def training_steps(shape: Shape, layout: ParallelConfig | None, rank: int, store: Path) -> dict[str, Callable[[], float]]:
    """Join the process group of a layout and return the training step of a rank, which returns the mean loss of the batch."""
    world = SINGLE_PROCESS
    if layout is None:
        shape, layout, rank = replace(shape, pairs=shape.pairs // 2), ParallelConfig(), 0
    elif layout.n_processes > 1:
        world = _GROUP.enter_context(join_process_group(store.as_uri(), rank, layout.n_processes))
    ranks, model = Ranks(world, layout, torch.device("cpu")), fresh_model(shape).train()
    dtype = choose_precision("auto", torch.device("cpu")).dtype
    pipeline = apply_layout(model, ranks, dtype)
    optimizer, batch = build_optimizer(model, TRAINING.optimizer), training_batch(shape)
    split_groups_by_mesh(optimizer)
    objective = CrossEntropy(TRAINING.label_smoothing)
    train_step = TrainStep(
        model, optimizer, TRAINING, dtype, objective, ranks, filler=lambda: take_rows(batch, slice(0, 1)), pipeline=pipeline
    )
    own = take_rows(batch, slice(layout.batch_part(rank), None, layout.n_batch_parts))

    def step() -> float:
        result = train_step.step([own], LEARNING_RATE)
        return result.loss / result.n_target_tokens

    return {"step": step}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layouts", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="check that everything runs, with tiny shapes and meaningless figures")
    parser.add_argument("--rounds", type=int, default=7, help="timings per layout")
    parser.add_argument("--out", type=Path, help="JSON file to write the results to")
    return parser


if __name__ == "__main__":
    main()
