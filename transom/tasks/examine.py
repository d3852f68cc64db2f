"""Open a run for ``transom doctor``: its model, validation data and metrics."""

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from transom.checkpoints.run_files import METRICS, RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.config.data import FilesConfig
from transom.config.recipe import Recipe, load_recipe
from transom.data.text.text_io import expand_path
from transom.errors import TransomError
from transom.inspection.activations import find_network
from transom.inspection.doctor.checkup import Checkup, TrainingTokens, tensor_batch
from transom.tasks.image_classification.task import ImageTask
from transom.tasks.load import load
from transom.tasks.run_data import validation_batches
from transom.tasks.task import task_class
from transom.training.metrics_window import read_metrics_history
from transom.training.task_protocol import Task, TaskContext

NEED_DATA = {"loss", "calibration", "dead-heads", "attention", "neurons", "experts", "embeddings"}
"""Checks that are left out, or say less, without data; the others use random tokens."""

BYTES_PER_SECOND = 1_000_000
"""Bytes of data that are read for each second of the time limit."""

COUNTING_SECONDS = 2.0
"""Time for counting the tokens of the training data."""


def open_checkup(folder: Path, checks: Sequence[str], seconds: float, with_data: bool) -> Checkup:
    """Load a run for an examination.

    Args:
        folder: the run folder.
        checks: names of the checks that will run.
        seconds: time limit of the examination, from which the amount of data that are read follows.
        with_data: whether data may be read.

    Raises:
        CheckpointError: the folder contains no intact run.
    """
    _, model = find_network(load(folder, "fp32"), None)
    run = RunFolder.open(folder)
    recipe = load_recipe(folder / RECIPE)[0] if run.has_recipe else None
    metrics = read_metrics_history(run.metrics) if (folder / METRICS).exists() else []
    checkup = Checkup(model, recipe=recipe, metrics=metrics)
    if not with_data:
        checkup.no_data = "data were not read (--no-data)"
    elif recipe is None:
        checkup.no_data = f"the run folder has no {RECIPE} that names the data"
    elif not NEED_DATA & {*checks}:
        checkup.no_data = "no chosen check needs data"
    else:
        _read_data(checkup, recipe, run, seconds)
    return checkup


def _read_data(checkup: Checkup, recipe: Recipe, run: RunFolder, seconds: float) -> None:
    """Read the validation data of a run, and the training data too, unless these are large and stored apart.

    Test data are never read. If the data cannot be read, the reason is stored.
    """
    limit = BYTES_PER_SECOND * seconds
    recipe = recipe.with_fields("data", test=None)
    if languages := getattr(recipe.data, "languages", ()):
        recipe = recipe.with_fields("data", languages=tuple(each.model_copy(update={"test": None}) for each in languages))
    data, root = recipe.data, Path(recipe.data.root)
    size = _size(root, data.parts)
    training_too = size <= limit
    if not training_too and data.train is not None and data.valid is not None and _size(root, [data.valid]) <= limit:
        recipe = recipe.with_fields("data", train=data.valid)
    elif not training_too:
        checkup.no_data = f"the data have {size / 1e6:,.3g} MB; {limit / 1e6:,.3g} MB are read in {seconds:g} s (--seconds)"
        return
    try:
        task = task_class(recipe).read(recipe, TaskContext(root, run, lambda _: None))
    except TransomError as error:
        checkup.no_data = f"the data cannot be read: {error}"
        return
    checkup.batches = validation_batches(task)
    if training_too:
        checkup.training_tokens = count_training_tokens(task, checkup)


def _size(root: Path, parts: Sequence[FilesConfig]) -> int:
    """Return the number of bytes of files, and of the files in folders; 0 for what does not exist."""
    total = 0
    for path in (root / expand_path(each) for part in parts for each in part.paths):
        files = path.rglob("*") if path.is_dir() else [path]
        total += sum(file.stat().st_size for file in files if file.is_file())
    return total


def count_training_tokens(task: Task, checkup: Checkup) -> TrainingTokens | None:
    """Count the tokens of one epoch of training batches, or of as many as ``COUNTING_SECONDS`` allow; None for images and sounds.

    Args:
        task: the task with its training data.
        checkup: the model, whose embeddings give the numbers of token ids.
    """
    if isinstance(task, ImageTask):
        return None
    sizes = [getattr(checkup.model.config, name) for name in checkup.model.config.VOCABULARIES]
    counts = {side: torch.zeros(size, dtype=torch.long) for side, size in zip(("source", "target"), sizes, strict=False)}
    position, end = 0, time.perf_counter() + COUNTING_SECONDS
    for position, batches in task.loader.batches_from(0):
        for batch in map(tensor_batch, batches):
            texts = ((text, side) for text, side in ((batch.source, "source"), (batch.decoder_input, "target")) if text is not None)
            for text, side in texts:
                count = counts[side if side in counts else "source"]
                count += text.tokens[text.segments > 0].clamp(max=len(count) - 1).bincount(minlength=len(count))
        if position >= task.loader.n_samples or time.perf_counter() > end:
            break
    return TrainingTokens(counts, position >= task.loader.n_samples)
