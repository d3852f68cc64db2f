"""Where a verb may write: never onto what it reads, and never onto a run's own files; this module needs no pydantic."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from transom.errors import ConfigError
from transom.files.regular_files import resolve_path

if TYPE_CHECKING:
    from transom.config.recipe import Recipe


def check_output_path(output: Path | None, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse to write a file where something would be lost; to be asked before anything is read or computed.

    Args:
        output: where a verb is to write; None for nowhere.
        inputs: files and folders that it reads, runs among them; None for those that were not given.

    Raises:
        ConfigError: a run owns that place, or it is one of the inputs or a file in one, by whatever name or link.
    """
    if output is None:
        return
    for location in (_resolve_parent(output), resolve_path(output)):
        if (run := owning_run(location)) is not None:
            raise ConfigError(f"{output}: expected a place for the output, found one of the files of the run {run}; name another file")
    for file in (file for given in inputs if given is not None for file in _input_files(given)):
        if _is_same(output, file):
            raise ConfigError(f"{output}: expected a place for the output, found the input {file}; name another file")


def owning_run(location: Path) -> Path | None:
    """Find the run folder one of whose own files, by name, a resolved path is; whether or not the file is there."""
    from transom.checkpoints.run_files import CHECKPOINTS, FILES, LOCK, contains_run

    for depth, folder in enumerate(location.parents, 1):
        if location.parts[-depth] in ((*FILES, LOCK, CHECKPOINTS) if depth == 1 else (CHECKPOINTS,)) and contains_run(folder):
            return folder
    return None


def check_run_folder_is_no_input(recipe: "Recipe", base: Path, out: Path) -> None:
    """Refuse a run folder whose files, which training replaces, the recipe itself names.

    Args:
        recipe: what to train.
        base: folder that relative paths of it start from.
        out: the run folder.

    Raises:
        ConfigError: the run is to start from itself, or is to learn from one of its own files.
    """
    check_output_path(out)
    origin = recipe.training.init_from
    if origin is not None and resolve_path(base / Path(origin).expanduser()) == resolve_path(out):
        raise ConfigError(f"{out}: expected another folder than that of the run to start from; give another --out")
    for path in data_paths(recipe, base):
        if owning_run(resolve_path(path)) == resolve_path(out):
            raise ConfigError(f"{out}: expected another folder than that of the input {path}; give another --out")


def data_paths(recipe: "Recipe", base: Path) -> list[Path]:
    """List the files and folders of examples that a recipe names."""
    from transom.data.text.text_io import expand_path

    root = base / expand_path(recipe.data.root)
    return [root / expand_path(path) for part in recipe.data.parts for path in part.paths]


def _resolve_parent(path: Path) -> Path:
    """Resolve the folder of a path and leave its last name, which may be a link."""
    return resolve_path(path.parent) / path.name


def _input_files(given: Path) -> Iterable[Path]:
    """List what an input consists of: of a run its files, of another folder all in it."""
    from transom.checkpoints.run_files import FILES, contains_run

    if not given.is_dir():
        return [given]
    return [given / name for name in FILES] if contains_run(given) else (path for path in given.rglob("*") if path.is_file())


def _is_same(a: Path, b: Path) -> bool:
    """Tell whether two paths are one file: both names of it, or of nothing yet, where they lead to the same place."""
    try:
        return a.samefile(b)
    except OSError:
        return resolve_path(a) == resolve_path(b)
