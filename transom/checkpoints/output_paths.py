"""Check output paths: no command overwrites its input or a run's own files. This module imports no pydantic."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from transom.errors import ConfigError
from transom.files.regular_files import resolve_path

if TYPE_CHECKING:
    from transom.config.recipe import Recipe


def check_output_path(output: Path | None, inputs: Iterable[Path | None] = ()) -> None:
    """Raise an error if writing a file would overwrite something; call this before reading or computing anything.

    Args:
        output: output file of a command; None for no output.
        inputs: files and folders that the command reads, including runs; None for those not given.

    Raises:
        ConfigError: the path belongs to a run, or is one of the inputs or a file in one, under any name or link.
    """
    if output is None:
        return
    for location in (_resolve_parent(output), resolve_path(output)):
        if (run := owning_run(location)) is not None:
            raise ConfigError(f"{output}: expected an output path, found a file of the run {run}; name another file")
    for file in (file for given in inputs if given is not None for file in _input_files(given)):
        if _is_same(output, file):
            raise ConfigError(f"{output}: expected an output path, found the input {file}; name another file")


def owning_run(location: Path) -> Path | None:
    """Return the run folder to which a resolved path belongs by its name, whether or not the file exists."""
    from transom.checkpoints.run_files import CHECKPOINTS, FILES, LOCK, contains_run

    for depth, folder in enumerate(location.parents, 1):
        if location.parts[-depth] in ((*FILES, LOCK, CHECKPOINTS) if depth == 1 else (CHECKPOINTS,)) and contains_run(folder):
            return folder
    return None


def check_run_folder_is_no_input(recipe: "Recipe", base: Path, out: Path) -> None:
    """Raise an error if a recipe reads files of the run folder that training replaces.

    Args:
        recipe: the recipe.
        base: folder to which its relative paths refer.
        out: the run folder.

    Raises:
        ConfigError: the run would start from itself or train on one of its own files.
    """
    check_output_path(out)
    origin = recipe.training.init_from
    if origin is not None and resolve_path(base / Path(origin).expanduser()) == resolve_path(out):
        raise ConfigError(f"{out}: expected a folder other than that of the original run; give another --out")
    for path in data_paths(recipe, base):
        if owning_run(resolve_path(path)) == resolve_path(out):
            raise ConfigError(f"{out}: expected a folder other than that of the input {path}; give another --out")


def data_paths(recipe: "Recipe", base: Path) -> list[Path]:
    """List the data files and folders of a recipe."""
    from transom.data.text.text_io import expand_path

    root = base / expand_path(recipe.data.root)
    return [root / expand_path(path) for part in recipe.data.parts for path in part.paths]


def _resolve_parent(path: Path) -> Path:
    """Resolve the folder of a path but not its last name, which may be a link."""
    return resolve_path(path.parent) / path.name


def _input_files(given: Path) -> Iterable[Path]:
    """List the files of an input: those of a run, or all files of another folder."""
    from transom.checkpoints.run_files import FILES, contains_run

    if not given.is_dir():
        return [given]
    return [given / name for name in FILES] if contains_run(given) else (path for path in given.rglob("*") if path.is_file())


def _is_same(a: Path, b: Path) -> bool:
    """Return whether two paths are the same file, or would be if it existed."""
    try:
        return a.samefile(b)
    except OSError:
        return resolve_path(a) == resolve_path(b)
