"""Disk space that a run's checkpoints need, checked before training."""

import shutil
from pathlib import Path

from torch import nn

from transom.config.training import CheckpointAverageConfig, EmaConfig, TrainingConfig
from transom.errors import DiskError

N_FULL_CHECKPOINTS = 3
"""Number of complete checkpoints at a time: the two that are kept, and the one being written."""


def required_disk_bytes(model: nn.Module, training: TrainingConfig) -> int:
    """Return an upper bound of the bytes that a run writes, except for metrics and reports.

    A complete checkpoint has the trained weights, at most two numbers per weight of the optimizer's state, and the moving average of the
    weights if there is one. Besides these there are the snapshots of checkpoint averaging, the weights that ``keep_checkpoints`` keeps, the
    best weights and their replacement.
    """
    all_bytes = sum(x.numel() * x.element_size() for x in model.state_dict().values())
    n_trained = sum(x.numel() for x in model.parameters() if x.requires_grad)
    full = (3 + isinstance(training.average, EmaConfig)) * 4 * n_trained
    n_snapshots = training.average.n_checkpoints if isinstance(training.average, CheckpointAverageConfig) else 0
    return N_FULL_CHECKPOINTS * full + (2 * n_snapshots + training.keep_checkpoints) * 4 * n_trained + 2 * all_bytes


def check_disk_space(folder: Path, model: nn.Module, training: TrainingConfig) -> None:
    """Check that the run's files fit on the disk.

    Args:
        folder: the run folder.
        model: the model to train.
        training: the training settings.

    Raises:
        DiskError: the disk has less free space than the run needs beyond the files that it has already.
    """
    present = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    required, free = required_disk_bytes(model, training), shutil.disk_usage(folder).free
    if free < required - present:
        raise DiskError(
            f"{folder}: expected {(required - present) / 1e9:,.2f} GB of free disk space for the checkpoints of the run, found"
            f" {free / 1e9:,.2f} GB; free some space, give another --out, or set training.average = 'none'"
        )
