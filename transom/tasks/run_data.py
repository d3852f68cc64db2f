"""The training and validation data of a finished run, in batches as in training."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transom.checkpoints.run_files import RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import load_recipe
from transom.data.batch import Batch
from transom.data.text.text_io import read_lines
from transom.errors import ConfigError
from transom.inspection.example_batch import SupportsFileInput, build_example_batch
from transom.inspection.sample_attention import first_text
from transom.models.inputs import TensorBatch
from transom.tasks.image_classification.task import ImageTask
from transom.tasks.task import task_class
from transom.training.task_protocol import TaskContext


class RunData(NamedTuple):
    """Data of a run.

    Attributes:
        train: training batches in the order of the run, without end.
        valid: validation batches.
    """

    train: Iterator[Batch]
    valid: list[Batch]


def load_run_data(folder: Path, notify: Callable[[str], None] = lambda _: None) -> RunData:
    """Read the data of a run again, from the files or generators that its recipe names.

    Args:
        folder: the run folder.
        notify: called with a short description of each stage of reading.

    Raises:
        ConfigError: the run has no recipe.
        DataError: the files have moved or changed.
    """
    task = _read_task(folder, notify)
    batches = (batch for _, micro_batches in task.loader.batches_from(0) for batch in micro_batches)
    return RunData(batches, validation_batches(task))


def _read_task(folder: Path, notify: Callable[[str], None]) -> Any:
    """Read the data of a run's recipe, and return its task.

    Raises:
        ConfigError: the run has no recipe.
    """
    run = RunFolder.open(folder)
    if not run.has_recipe:
        raise ConfigError(f"{folder}: expected a run with a recipe, which names its data, found none; give a text")
    recipe, base = load_recipe(folder / RECIPE)
    return task_class(recipe).read(recipe, TaskContext(base, run, notify))


def load_sample(folder: str | Path, sample: str | int, notify: Callable[[str], None] = lambda _: None) -> Any:
    """Read one sample of a run's validation data, as a batch of one row without padding.

    Args:
        folder: the run folder.
        sample: the number of the sample, from 0 in the order of the data, or the name of an image or sound, such as ``cats/1.jpg``. If a
            row holds several texts, the first is read.
        notify: called with a short description of each stage of reading.

    Raises:
        ConfigError: the run has no recipe, or there is no such sample.
        DataError: the files have moved or changed.
    """
    task = _read_task(Path(folder), notify)
    if isinstance(task, ImageTask):
        return task.sample(_number(sample, len(task.valid), task.valid.names))
    rows = [(number, batch, row) for batch in validation_batches(task) for row, number in enumerate(batch.sample_ids)]
    _, batch, row = sorted(rows, key=lambda each: each[0])[_number(sample, len(rows))]
    source, decoder_input = (
        None if (side := getattr(batch, name, None)) is None else first_text(side, row, side.tokens.device)
        for name in ("source", "decoder_input")
    )
    return TensorBatch(source, decoder_input)


def _number(sample: str | int, n: int, names: Sequence[str] = ()) -> int:
    """Return the number of a sample.

    Raises:
        ConfigError: there is none of this name or number.
    """
    if sample in names:
        return names.index(str(sample))
    number = int(sample) if isinstance(sample, int) or (sample.isascii() and sample.isdigit() and len(sample) < 10) else -1
    if not 0 <= number < n:
        example = f" or a name such as {names[0]}" if names else ""
        raise ConfigError(f"sample: expected a number from 0 to {n - 1:,}{example}, found {sample!r}; choose another sample")
    return number


def validation_batches(task: Any) -> list[Batch]:
    """Return the validation data of a task in batches; those of a multilingual translator one language after another."""
    batches = task.valid_batches
    return [batch for each in batches.values() for batch in each] if isinstance(batches, Mapping) else list(batches)


def first_batches(batches: Iterable[Batch], n: int) -> Iterator[Batch]:
    """Yield batches until they have ``n`` rows or more."""
    for batch in batches:
        if n <= 0:
            return
        n -= len(batch.sample_ids)
        yield batch


def load_inputs(run: Any, folder: Path, text: str | None, file: Path | None) -> list[Any]:
    """Return batches of a text, of the lines of a file, or of the run's validation data if neither is given.

    Args:
        run: the run in ``folder``, loaded by ``transom.load``.
        folder: the run folder.
        text: a text; longer texts than the context window are truncated.
        file: a file of texts, one per line, or the file of an image or sound classifier.

    Raises:
        DataError: a text or file cannot be read.
    """
    if text is not None:
        return [build_example_batch(run, text, None).batch]
    if file is None:
        return list(load_run_data(folder).valid)
    if isinstance(run, SupportsFileInput):
        return [build_example_batch(run, None, file).batch]
    return [build_example_batch(run, line, None).batch for line in read_lines(file) if line.strip()]
