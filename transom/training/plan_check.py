"""Compare the plan of a run with the memory and time that it used."""

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from transom.checkpoints.run_files import RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import load_recipe
from transom.errors import ConfigError
from transom.planning.freed_memory import give_back_freed_memory
from transom.planning.hardware import measure_peak
from transom.planning.plan import Plan
from transom.planning.precision import choose_precision, choose_threads, num_threads_set_to, plan_processes
from transom.planning.process_state import preserved_process_state
from transom.training.metrics_window import read_metrics_history
from transom.training.plan_run import NO_OPTIONS, PlanOptions, batch_shape, measure_seconds_per_flop, plan_run

JUDGED_BYTES = 2**30
"""A run of less memory is not judged: Python's own memory and that of the data are not small beside it."""

MEMORY_TOLERANCE, TIME_TOLERANCE = 0.10, 0.15
"""Relative differences between plan and use that are expected at most."""


@dataclass(frozen=True)
class PlanCheck:
    """Prediction and use of a finished run.

    Attributes:
        run: the run folder.
        plan: the plan of its recipe.
        memory_used: largest resident memory of the process, above that before data and model were loaded, while freed memory was given
            back to the system, in bytes.
        memory_held: the same, later too: more if freed memory was kept.
        seconds_used: median of the logged seconds per step.
    """

    run: Path
    plan: Plan
    memory_used: int
    memory_held: int
    seconds_used: float

    @property
    def seconds_predicted(self) -> float:
        """Seconds per step of the plan."""
        assert self.plan.time is not None
        return self.plan.time.seconds_per_step

    @property
    def memory_difference(self) -> float:
        """Relative difference of the predicted to the used memory."""
        return self.plan.memory.total / self.memory_used - 1

    @property
    def time_difference(self) -> float:
        """Relative difference of the predicted to the used seconds per step."""
        return self.seconds_predicted / self.seconds_used - 1

    def to_json(self) -> dict[str, Any]:
        """Return both comparisons as JSON-serializable data."""
        return {
            "run": str(self.run),
            "memory": {
                "predicted": self.plan.memory.total,
                "used": self.memory_used,
                "difference": self.memory_difference,
                "held": self.memory_held,
            },
            "seconds_per_step": {"predicted": self.seconds_predicted, "used": self.seconds_used, "difference": self.time_difference},
            "memory_is_judged": self.memory_used >= JUDGED_BYTES,
            "rate": self.plan.time.rate_source if self.plan.time else "",
        }


def check_plan(run: Path, options: PlanOptions = NO_OPTIONS, seconds: float = 10.0) -> PlanCheck:
    """Plan the recipe of a run and compare the plan with what the run used.

    The rate of training is that of a few real steps with random weights on this machine, unless ``options`` gives one.

    Args:
        run: the run folder.
        options: what the user chooses.
        seconds: time to measure the rate.

    Raises:
        ConfigError: the folder is no run, or its metrics do not have memory and time, as those of a GPU.
    """
    folder = RunFolder.open(run)
    if not folder.has_recipe:
        raise ConfigError(f"{run}: expected a run with a recipe, found none; give a folder that transom train --out wrote")
    recipe, records = load_recipe(run / RECIPE)[0], read_metrics_history(folder.metrics)
    fields = ("needed_memory", "peak_memory", "seconds_per_step")
    used, held, times = ([record[name] for record in records if record.get(name) is not None] for name in fields)
    if not used or not times:
        raise ConfigError(
            f"{run}: expected metrics with needed_memory and seconds_per_step, found none; on a CPU train longer than training.log_every ="
            f" {recipe.training.log_every} steps with this version; runs on a GPU are not compared"
        )
    precision, threads = choose_precision(recipe.training.precision, torch.device("cpu")), choose_threads()
    options = replace(options, batch_parts=recipe.parallel.n_batch_parts)
    if options.flops_per_second is None:
        shape, _ = batch_shape(recipe.model, recipe.training, options)
        n_threads = plan_processes(recipe.parallel, threads, torch.device("cpu")).threads
        with preserved_process_state(), num_threads_set_to(n_threads):
            if max(held) == max(used):
                give_back_freed_memory()  # as the run did
            peak = measure_peak().flops[precision.dtype]
            rate = 1 / measure_seconds_per_flop(recipe.model, recipe.training, shape, precision.name, seconds)
        utilization = options.utilization or rate / peak
        options = replace(options, flops_per_second=peak, utilization=utilization, rate_source="measured on this machine")
    plan = plan_run(str(run), recipe.model, recipe.training, options)
    return PlanCheck(run, plan, max(used), max(held), statistics.median(times[1:] or times))
