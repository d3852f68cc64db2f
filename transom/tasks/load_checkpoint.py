"""Loads predictors from the checkpoints of a run."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transom.checkpoints.run_files import CHECKPOINTS
from transom.checkpoints.run_folder import RunFolder
from transom.errors import CheckpointError
from transom.tasks.average import checkpoint_weights
from transom.tasks.load import PrecisionName, load, load_with_task


def load_run_or_checkpoint(path: Path, precision: PrecisionName = "auto") -> Any:
    """Load the predictor of a run with the run's weights, or with those of one of its checkpoints.

    Args:
        path: a run folder, or a checkpoint in it, such as ``runs/gpt/checkpoints/step-500``.
        precision: dtype of the matrix products, as for ``load``.

    Raises:
        CheckpointError: there is no intact run, or it has not kept this checkpoint.
        ConfigError: the model or the machine does not support the precision.
    """
    step = re.fullmatch(r"step-(\d{1,18})", path.name)
    if step is None or path.parent.name != CHECKPOINTS:
        return load(path, precision)
    run = path.parent.parent
    return load_with_task(run, precision, checkpoint_weights(RunFolder.open(run), int(step[1])))[0]


def kept_steps(folder: Path) -> list[int]:
    """Return the steps of training whose weights a run keeps, ascending: those of its checkpoints, and that of its own weights.

    Raises:
        CheckpointError: the run has fewer than two checkpoints.
    """
    run = RunFolder.open(folder)
    kept = run.checkpoints.steps()
    if len(kept) < 2:
        found = ", ".join(f"step-{step}" for step in kept) or "none"
        raise CheckpointError(
            f"{folder}: expected a run with two checkpoints or more, found {found}; a run keeps those of the last"
            " training.keep_checkpoints times training.checkpoint_every steps: set both when you train it"
        )
    return sorted({*kept, *([] if run.weights_step is None else [run.weights_step])})


def load_steps(folder: Path, precision: PrecisionName = "auto") -> Iterator[tuple[int, Any]]:
    """Load the predictors of all ``kept_steps``, one after another, each with its step.

    At the step of the run's own weights, these are loaded, not those of the checkpoint.
    """
    run = RunFolder.open(folder)
    for step in kept_steps(folder):
        if step == run.weights_step:
            yield step, load(folder, precision)
        else:
            yield step, load_with_task(folder, precision, checkpoint_weights(run, step))[0]
