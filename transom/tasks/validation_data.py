"""The validation data of a trained run, read again in batches, to inspect its model."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from transom.checkpoints.run_files import RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import load_recipe
from transom.errors import ConfigError
from transom.tasks.task import task_class
from transom.training.task_protocol import TaskContext


def validation_batches(run: Path, n_rows: int, notify: Callable[[str], None] = lambda _: None) -> Iterator[Any]:
    """Yield batches of the validation data of a run, until they have at least ``n_rows`` rows: texts, pairs, windows or images.

    Args:
        run: the run folder.
        n_rows: number of rows.
        notify: called with a short description of each stage of reading.

    Raises:
        ConfigError: the run has no recipe, or its task has no validation batches.
        TransomError: the data can no longer be read.
    """
    folder = RunFolder.open(run)
    if not folder.has_recipe:
        raise ConfigError(f"{run}: expected a run with a recipe, which names its data, found none; give a text")
    recipe, base = load_recipe(folder.path / RECIPE)
    task = task_class(recipe).read(recipe, TaskContext(base, folder, notify))
    batches = getattr(task, "valid_batches", None)
    if batches is None:
        raise ConfigError(f"{run}: expected a task with validation batches, found {type(task).__name__}; give a text")
    seen = 0
    for batch in chain.from_iterable(batches.values()) if isinstance(batches, Mapping) else batches:
        yield batch
        seen += len(batch.sample_ids)
        if seen >= n_rows:
            return
