"""The registry of tasks: the values of a recipe's ``task``.

The packaged tasks are found by their files, ``tasks/*/schema.py``, and imported by name at first use: a new task changes nothing outside
its folder. Packages import only packages of lower layers (docs/architecture.md); this import is one of two exceptions, the other is that of
the dispatch table.
"""

import ast
from functools import cache
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, TypeVar

from transom.config import task_options
from transom.config.task_options import TaskHelp
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.config.recipe import Recipe

Registered = TypeVar("Registered", bound=type)

PACKAGED = "transom.tasks"
"""The package that contains one folder per task."""

_recipes: dict[str, "type[Recipe]"] = {}
"""Recipes registered so far."""


def register_task(recipe: Registered) -> Registered:
    """Register a task by its recipe schema, whose field ``task`` has the task's name as default (decorator).

    Raises:
        ConfigError: the name is taken.
    """
    form: type[Recipe] = recipe
    name = form.model_fields["task"].default
    if (known := _recipes.setdefault(name, form)) is not form:
        raise ConfigError(f"{recipe.__module__}: task {name!r} is registered by {known.__module__}; choose another name")
    return recipe


def recipes_by_task() -> dict[str, "type[Recipe]"]:
    """Return the recipe schema of each task by name, in display order."""
    _import_packaged()
    return dict(sorted(_recipes.items(), key=lambda item: (item[1].HELP.order, item[0])))


def registered_recipes() -> list["type[Recipe]"]:
    """Return the recipe schemas registered so far, without importing further tasks."""
    return list(_recipes.values())


@cache
def _import_packaged() -> None:
    for folder in _folders():
        import_module(f"{PACKAGED}.{folder.name}.schema")


def _folders() -> list[Traversable]:
    """List the folders of the packaged tasks."""
    folders = sorted(resources.files(PACKAGED).iterdir(), key=lambda folder: folder.name)
    return [folder for folder in folders if folder.joinpath("schema.py").is_file()]


def list_task_help() -> list[TaskHelp]:
    """Return the help of each task in display order, without importing any schema."""
    outside = [recipe.HELP for recipe in _recipes.values() if not recipe.__module__.startswith(f"{PACKAGED}.")]
    return sorted([*_packaged_helps(), *outside], key=lambda told: told.order)


@cache
def _packaged_helps() -> tuple[TaskHelp, ...]:
    """Return ABOUT of each packaged task, evaluated from its source alone, with the names of ``task_options``."""
    helps = []
    for folder in _folders():
        source = ast.parse(folder.joinpath("schema.py").read_text("utf-8"))
        (about,) = [node.value for node in source.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ABOUT"]
        helps.append(eval(compile(ast.Expression(about), folder.name, "eval"), dict(vars(task_options))))
    return tuple(helps)
