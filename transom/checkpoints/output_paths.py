"""Check output paths, so that no command overwrites its input or the files of a run. This module imports no pydantic."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from transom.errors import ConfigError
from transom.files.regular_files import resolve_path

if TYPE_CHECKING:
    from transom.config.recipe import Recipe


def check_output_path(output: Path | None, inputs: Iterable[Path | None] = ()) -> None:
    """Raise an error if an output file would replace an input or a file of a run; call this before reading or computing anything.

    Args:
        output: output file of a command; None if the command writes no file.
        inputs: files and folders that the command reads, run folders included; None for an option that is not given.

    Raises:
        ConfigError: the output is a file of a run, an input, or a file in an input folder, named directly or through a link.
    """
    if output is None:
        return
    for location in (_resolve_parent(output), resolve_path(output)):
        if (run := owning_run(location)) is not None:
            raise ConfigError(f"{output}: expected a new output file, found a file of the run {run}; give another path")
    for file in (file for given in inputs if given is not None for file in _input_files(given)):
        if _is_same(output, file):
            raise ConfigError(f"{output}: expected a new output file, found the input {file}; give another path")


def check_output_file(output: Path | None, inputs: Iterable[Path | None] = ()) -> None:
    """Check an output file as ``check_output_path`` does, and that its folder exists; call this before reading or computing anything.

    Raises:
        ConfigError: the file would replace an input or a file of a run, is a folder, or is to be written to a folder that does not exist.
    """
    check_output_path(output, inputs)
    if output is not None and output.is_dir():
        raise ConfigError(f"{output}: expected a new output file, found a folder; give the name of a file")
    if output is not None and not output.parent.is_dir():
        raise ConfigError(f"{output}: expected an output file in a folder that exists, found no folder {output.parent}; create it first")


def owning_run(location: Path) -> Path | None:
    """Return the run folder if a resolved path names a file or checkpoint of a run, existing or not; None for other paths."""
    from transom.checkpoints.run_files import CHECKPOINTS, FILES, LOCK, contains_run

    for depth, folder in enumerate(location.parents, 1):
        if location.parts[-depth] in ((*FILES, LOCK, CHECKPOINTS) if depth == 1 else (CHECKPOINTS,)) and contains_run(folder):
            return folder
    return None


def check_run_folder_is_no_input(recipe: "Recipe", base: Path, out: Path) -> None:
    """Raise an error if a recipe reads data or initial weights from the run folder that the training run would write.

    Args:
        recipe: the recipe.
        base: folder from which a relative ``data.root`` or ``training.init_from`` starts.
        out: the run folder to write.

    Raises:
        ConfigError: the run would start from itself or train on one of its own files.
    """
    check_output_path(out)
    origin = recipe.training.init_from
    if origin is not None and resolve_path(base / Path(origin).expanduser()) == resolve_path(out):
        raise ConfigError(f"{out}: expected a new run folder, found the run of training.init_from; give another --out")
    for path in data_paths(recipe, base):
        if owning_run(resolve_path(path)) == resolve_path(out):
            raise ConfigError(f"{out}: expected a new run folder, found the run that contains the data file {path}; give another --out")


def data_paths(recipe: "Recipe", base: Path) -> list[Path]:
    """Return the paths of a recipe's data files and folders; relative ones start from ``base``."""
    from transom.data.text.text_io import expand_path

    root = base / expand_path(recipe.data.root)
    return [root / expand_path(path) for part in recipe.data.parts for path in part.paths]


def _resolve_parent(path: Path) -> Path:
    """Resolve the links in the folder of a path, but not a link in its last component."""
    return resolve_path(path.parent) / path.name


def _input_files(given: Path) -> Iterable[Path]:
    """List the files of an input: those of a run, or all files of another folder."""
    from transom.checkpoints.run_files import FILES, contains_run

    if not given.is_dir():
        return [given]
    return [given / name for name in FILES] if contains_run(given) else (path for path in given.rglob("*") if path.is_file())


def _is_same(a: Path, b: Path) -> bool:
    """Return whether two paths name the same file, which need not exist."""
    try:
        return a.samefile(b)
    except OSError:
        return resolve_path(a) == resolve_path(b)
