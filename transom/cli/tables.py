"""Read tables named on the command line: find the columns of a run's training data, and ask about an ambiguous header."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import typer

from transom.checkpoints.run_files import RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.config.arguments import toml_value
from transom.config.data import DataConfig, FilesConfig
from transom.config.recipe import load_recipe
from transom.errors import AmbiguousHeaderError

Read = TypeVar("Read")


def header_overrides(data: DataConfig, is_header: bool | None) -> list[str]:
    """Return the overrides that set ``header`` for each table in a recipe's data; empty if ``is_header`` is None."""
    if is_header is None:
        return []
    parts = [name for name in ("train", "valid", "test") if hasattr(getattr(data, name, None), "header")]
    return [f"data.{name}.header={toml_value(is_header)}" for name in parts]


def training_columns(run: Path, files: type[FilesConfig]) -> dict[str, Any]:
    """Return the columns that the recipe of a run sets for its training data, by field.

    Args:
        run: the run folder.
        files: expected schema of the training files. The result is empty for training data of another schema, or if the run has no recipe.
    """
    folder = RunFolder.open(run)
    train = getattr(load_recipe(folder.path / RECIPE)[0].data, "train", None) if folder.has_recipe else None
    if not isinstance(train, files):
        return {}
    return {name: value for name in files.model_fields if name.endswith("_field") and (value := getattr(train, name)) is not None}


def read_or_ask(read: Callable[[bool | None], Read]) -> Read:
    """Read a table, and ask in a terminal whether an ambiguous first line is a header.

    Args:
        read: function that reads the table. Its argument is the answer to the question, or None before the question.

    Raises:
        AmbiguousHeaderError: the first line is ambiguous, and there is no terminal to ask in.
    """
    try:
        return read(None)
    except AmbiguousHeaderError as error:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise
        return read(typer.confirm(error.question, err=True))
