"""Loads a predictor from a checkpoint of a run."""

import re
from pathlib import Path
from typing import Any

from transom.checkpoints.run_files import CHECKPOINTS
from transom.checkpoints.run_folder import RunFolder
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
