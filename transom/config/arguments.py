"""Convert the arguments of ``transom train`` and ``transom.train`` to overrides of the recipe."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transom.config.task_options import DataOption, format_flags
from transom.config.task_registry import list_task_help
from transom.errors import ConfigError, TransomError

Files = Mapping[DataOption, Any]
"""Values of the options that name the user's files; None for options that are not given."""


def data_arguments(wanted: Callable[[DataOption], bool] = lambda _: True) -> dict[str, DataOption]:
    """Return the data file options of all registered tasks, by their names as Python arguments."""
    every = (option for told in list_task_help() for option in told.options if wanted(option))
    return {option.flag.removeprefix("--").replace("-", "_"): option for option in every}


def training_overrides(
    recipe: str | Path,
    files: Files,
    overrides: Sequence[str] = (),
    init_from: Path | None = None,
    minutes: float | None = None,
) -> list[str]:
    """Return all overrides of a recipe; later ones take precedence.

    Args:
        recipe: name of a packaged recipe, or path of a TOML file.
        files: the user's data files, which replace the recipe's data.
        overrides: such as ``"training.max_steps=300"``.
        init_from: run folder to fine-tune.
        minutes: maximum training time.

    Raises:
        ConfigError: the files are of several kinds, or of a kind that the recipe does not train on, or an option is missing.
    """
    start = [] if init_from is None else [f"training.init_from={quoted(init_from)}"]
    limit = [] if minutes is None else [f"training.max_minutes={minutes}"]
    return [*file_overrides(recipe, overrides, files), *start, *overrides, *limit]


def file_overrides(recipe: str | Path, overrides: Sequence[str], files: Files) -> list[str]:
    """Return the overrides that replace the recipe's data by the user's files; empty without files.

    Args:
        recipe: name of a packaged recipe, or path of a TOML file.
        overrides: further overrides, which may change the task.
        files: the options with their values.

    Raises:
        ConfigError: the files are of several kinds, or of a kind that the recipe does not train on, or an option is missing.
    """
    from transom.config.recipe import data_flags

    kinds = dict.fromkeys(told.options for told in list_task_help())
    given = {format_flags(kind): sets for kind in kinds if (sets := _overrides(kind, files))}
    if len(given) > 1:
        raise ConfigError(f"expected data files of one kind, found {' and '.join(given)}; keep one of them")
    for named, sets in given.items():
        if named != (wanted := data_flags(recipe, overrides)):
            raise ConfigError(
                f"{recipe} trains on {wanted}, found {named}; give {wanted}, or choose another recipe (transom recipes lists them)"
            )
        return sets
    return []


def _overrides(kind: tuple[DataOption, ...], files: Files) -> list[str]:
    """Return the overrides of one kind of files; paths are relative to the current folder, not to ``data.root``.

    Training files replace all of the recipe's data.
    """
    given = {option: value for option in kind if (value := files.get(option))}
    for option in given:
        if option.needs and option.needs not in {each.flag for each in given}:
            raise ConfigError(f"{option.flag} requires {option.needs}: {option.why}")
    parts = dict[str, str]()
    for part in dict.fromkeys(option.part for option in given if option.part):
        fields = [f"{option.field} = {_file_value(option, value)}" for option, value in given.items() if option.part in (part, "")]
        parts[part] = f"data.{part}={{ {', '.join(fields)} }}"
    cleared = [f"data.{part}=none" for part in ("valid", "test", "generate")] if "train" in parts else []
    return [*cleared, *parts.values()]


def _file_value(option: DataOption, value: Any) -> str:
    """Return the value of an option as TOML; an option that may be repeated takes one value or several."""
    several = [value] if isinstance(value, str | Path) else list(value)
    written = [quoted(Path(each)) if option.is_path else toml_value(each) for each in several]
    return f"[{', '.join(written)}]" if option.repeated else written[0]


def quoted(path: Path) -> str:
    """Return a path, made absolute, as a TOML string.

    Raises:
        ConfigError: its name is not UTF-8, which recipes require.
    """
    text = str(path.absolute())
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(f"{text!a}: expected a name in UTF-8, the encoding of recipes, found other bytes; rename it")
    return toml_value(text)


def toml_value(value: Any) -> str:
    """Return a value as TOML on one line; None becomes ``"none"``, as in recipes.

    >>> toml_value({"kind": "rotary", "base": 1e4, "tied": True, "sizes": (1, 2), "cap": None})
    '{ "kind" = "rotary", "base" = 10000.0, "tied" = true, "sizes" = [1, 2], "cap" = "none" }'

    Raises:
        ConfigError: TOML has no such value.
    """
    import tomli_w

    match value:
        case None:
            return '"none"'
        case Mapping():
            return f"{{ {', '.join(f'{toml_value(str(name))} = {toml_value(each)}' for name, each in value.items())} }}"
        case list() | tuple():
            return f"[{', '.join(map(toml_value, value))}]"
        case Path():
            return quoted(value)
        case bool() | int() | float() | str():
            return tomli_w.dumps({"": value}).split("=", 1)[1].strip()
    raise ConfigError(f"set: expected text, numbers, booleans, lists and mappings, found {value!r} of type {type(value).__name__}")


def as_overrides(fields: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Convert changes of recipe fields to overrides.

    >>> as_overrides({"training.max_steps": 300, "model.norm": "rmsnorm", "model": {"d_model": 64, "position": {"kind": "rotary"}}})
    ['training.max_steps=300', 'model.norm="rmsnorm"', 'model.d_model=64', 'model.position={ "kind" = "rotary" }']

    Args:
        fields: values by dotted name, where a mapping replaces a component; or mappings by the name of a whole table, of which only the
            fields named there change. A list of overrides is returned as it is.

    Raises:
        ConfigError: ``fields`` is a single string, or a value cannot be written as TOML.
    """
    if isinstance(fields, str):
        raise ConfigError(f"set: expected a mapping such as {{'training.max_steps': 300}}, or a list of such texts, found {fields!r}")
    if not isinstance(fields, Mapping):
        return list(fields)
    overrides = list[str]()
    for name, value in fields.items():
        if isinstance(value, Mapping) and "." not in name:
            overrides += [f"{name}.{below}={toml_value(each)}" for below, each in value.items()]
        else:
            overrides.append(f"{name}={toml_value(value)}")
    return overrides


@contextmanager
def errors_for_python() -> Iterator[None]:
    """Rewrite errors raised in the block to name Python arguments instead of command-line options.

    >>> with errors_for_python():
    ...     raise ConfigError("--valid-source requires --valid-target")
    Traceback (most recent call last):
    transom.errors.ConfigError: valid_source requires valid_target
    """
    try:
        yield
    except TransomError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (_arguments_for_options(error.args[0]), *error.args[1:])
        raise


def _arguments_for_options(message: str) -> str:
    message = re.sub(r"(?<![\w-])--set (?=\S)", "set: ", message)
    return re.sub(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)", lambda found: found[1].replace("-", "_"), message)
