"""Tables given on the command line: the columns and the chat template of a run, and questions about ambiguous tables."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import typer

from transom.checkpoints.run_files import RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.config.arguments import toml_value
from transom.config.data import ChatTemplateConfig, DataConfig, FilesConfig
from transom.config.recipe import load_recipe
from transom.errors import AmbiguousDataError

Read = TypeVar("Read")

Answers = Mapping[str, bool]
"""The user's answers to questions about a table, by the field that each of them sets."""


def answer_overrides(data: DataConfig, answers: Answers) -> list[str]:
    """Return the overrides that set the fields of a recipe's data to the user's answers."""
    parts = [name for name in ("train", "valid", "test") if hasattr(getattr(data, name, None), "header")]
    headers = [f"data.{name}.header={toml_value(answers['header'])}" for name in parts if "header" in answers]
    return [*headers, *(f"data.{field}={toml_value(answer)}" for field, answer in answers.items() if field != "header")]


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


def chat_template(run: Path) -> ChatTemplateConfig:
    """Return the chat template of a run, or the default template if the task of the run has none."""
    folder = RunFolder.open(run)
    data = load_recipe(folder.path / RECIPE)[0].data if folder.has_recipe else None
    template: ChatTemplateConfig = getattr(data, "chat_template", ChatTemplateConfig())
    return template


def read_or_ask(read: Callable[[Answers], Read]) -> Read:
    """Read a table; in a terminal, ask how to read it if that is ambiguous, such as whether the first line is a header.

    Args:
        read: reads the table; its argument holds the answers so far, none before the first question.

    Raises:
        AmbiguousDataError: the table is ambiguous, and there is no terminal.
    """
    answers = dict[str, bool]()
    while True:
        try:
            return read(answers)
        except AmbiguousDataError as error:
            if error.field in answers or not (sys.stdin.isatty() and sys.stderr.isatty()):
                raise
            answers[error.field] = typer.confirm(error.question, err=True)
