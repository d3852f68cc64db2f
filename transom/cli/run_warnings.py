"""Warnings about a run, about inputs unlike its training inputs, and about evaluation on its training data."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from transom.errors import CheckpointError


def no_warnings(text: str) -> Sequence[str]:
    """Return no warnings: for inputs that are not texts, and for runs without a profile of their training inputs."""
    return ()


def input_warnings(run: Path) -> Callable[[str], Sequence[str]]:
    """Return a function that returns warnings about how an input differs from the training inputs of a run.

    For a run without a profile of its training inputs, the function returns no warnings.

    Raises:
        CheckpointError: the run's profile of its training inputs is damaged.
    """
    from transom.tasks.input_profile import read_input_profile

    profile = read_input_profile(run)
    return no_warnings if profile is None else profile.warnings


def result_warnings(run: Path) -> list[str]:
    """Return a warning if the validation metrics of a finished run are worse than those of a trivial predictor.

    Accuracy or F1 decides where a run has one: a few overconfident mistakes can give a useful classifier a poor loss. BLEU never decides.

    Raises:
        CheckpointError: the run's result is damaged.
    """
    from transom.checkpoints.run_files import RESULT
    from transom.checkpoints.run_folder import RunFolder
    from transom.data.reports.baseline import worse_than_baseline
    from transom.files.safe_read import read_json

    path = RunFolder.open(run).path / RESULT
    if not path.exists():
        return []
    value = read_json(path)
    try:
        decisive = [each for each in value["baseline"] if each["key"] not in ("loss", "bleu")]
        decisive = decisive or [each for each in value["baseline"] if each["key"] == "loss"]
        problems = worse_than_baseline(value["best"], decisive)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: damaged: a field is missing or of another type: {error}; remove the file to predict without it"
        ) from error
    return [f"{problem}: expect answers no better than guesses, and train this model for longer" for problem in problems[:1]]


def training_data_warnings(run: Path, paths: Iterable[Path]) -> list[str]:
    """Return a warning for each file or folder that a run was trained on, the same path or a file of the same content.

    Args:
        run: the run folder.
        paths: files and folders on which the run is evaluated.
    """
    from transom.checkpoints.run_files import RECIPE
    from transom.checkpoints.run_folder import RunFolder
    from transom.config.recipe import load_recipe
    from transom.data.text.text_io import expand_path

    folder = RunFolder.open(run)
    if not folder.has_recipe:
        return []
    data = load_recipe(folder.path / RECIPE)[0].data
    trained = [Path(data.root) / expand_path(name) for part in data.train_parts for name in part.paths]
    return [
        f"{path} is training data of {run}: the figures show what the model remembers, not how it does on new data; measure on data that"
        " it was not trained on"
        for path in paths
        if any(_is_same_data(path, other) for other in trained)
    ]


def _is_same_data(path: Path, other: Path) -> bool:
    """Return whether two paths name the same file or folder, or files of the same content."""
    from transom.files.safe_read import file_sha256

    if not (path.exists() and other.exists()):
        return False
    if path.samefile(other):
        return True
    return path.is_file() and other.is_file() and path.stat().st_size == other.stat().st_size and file_sha256(path) == file_sha256(other)
