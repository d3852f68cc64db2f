"""Convert the arguments of ``transom train`` and ``transom.train`` to overrides of the recipe."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transom.config.task_options import DataOption, format_flags
from transom.config.task_registry import list_task_help
from transom.config.toml_input import OptionOverride
from transom.errors import ConfigError, TransomError

Files = Mapping[DataOption, Any]
"""Values of the options that name the user's files; None for options that are not given."""


def data_arguments(wanted: Callable[[DataOption], bool] = lambda _: True) -> dict[str, DataOption]:
    """Return the data file options of all registered tasks, by their names as Python arguments, such as ``labeled_data``."""
    every = (option for told in list_task_help() for option in told.options if wanted(option))
    return {option.flag.removeprefix("--").replace("-", "_"): option for option in every}


def training_overrides(
    recipe: str | Path,
    files: Files,
    overrides: Sequence[str] = (),
    init_from: Path | None = None,
    minutes: float | None = None,
    steps: int | None = None,
) -> list[str]:
    """Convert the arguments of a training run to overrides of its recipe; later overrides take precedence.

    Args:
        recipe: name of a packaged recipe, or path of a TOML file.
        files: the user's data files, which replace the recipe's data.
        overrides: such as ``"training.max_steps=300"``.
        init_from: run folder to fine-tune.
        minutes: maximum training time.
        steps: number of optimizer steps.

    Raises:
        ConfigError: the files are of several kinds or of a kind that the recipe does not train on, or an option lacks one that it requires.
    """
    start = [] if init_from is None else [f"training.init_from={quoted(init_from)}"]
    limits = {"minutes": minutes, "steps": steps}
    limit = [OptionOverride(f"training.max_{name}={value}", f"--{name} {value}") for name, value in limits.items() if value is not None]
    return [*file_overrides(recipe, overrides, files), *start, *overrides, *limit]


def file_overrides(recipe: str | Path, overrides: Sequence[str], files: Files) -> list[str]:
    """Return the overrides that replace the recipe's data by the user's files; empty without files.

    Args:
        recipe: name of a packaged recipe, or path of a TOML file.
        overrides: further overrides, which may change the task.
        files: values of the data file options.

    Raises:
        ConfigError: the files are of several kinds or of a kind that the recipe does not train on, or an option lacks one that it requires.
    """
    from transom.config.recipe import data_flags

    given = {option: value for option, value in files.items() if value not in (None, [], ())}
    kinds = [kind for kind in dict.fromkeys(told.options for told in list_task_help()) if any(each.part and each in given for each in kind)]
    if len(kinds) > 1:  # an option of several kinds belongs to the files beside it, or else to the data of the recipe
        with_files = [kind for kind in kinds if any(each.part in ("train", "valid") and each in given for each in kind)]
        kinds = with_files or [kind for kind in kinds if format_flags(kind) == data_flags(recipe, overrides)]
    if len(kinds) > 1:
        raise ConfigError(f"expected data files of one kind, found {' and '.join(map(format_flags, kinds))}; give one kind only")
    if given:
        wanted = data_flags(recipe, overrides)
        if kinds and (named := format_flags(kinds[0])) != wanted:
            raise ConfigError(
                f"{recipe} trains on {wanted}, found {named}; give {wanted}, or choose another recipe (transom recipes lists all)"
            )
        if unused := [option.flag for option in given if not kinds or option not in kinds[0]]:
            raise ConfigError(
                f"expected {unused[0]} with data files that it applies to, found {format_flags(kinds[0]) if kinds else 'none'};"
                f" {'leave it out' if kinds else f'give {wanted} too, or set data.train in the recipe'}"
            )
        return _overrides({option: given[option] for option in kinds[0] if option in given})
    return []


def _overrides(given: Files) -> list[str]:
    """Return the overrides of one kind of files; relative paths start from the current folder, not from ``data.root``.

    If training files are given, they replace all data of the recipe, its validation and test data included.
    """
    for option in given:
        if option.needs and option.needs not in {each.flag for each in given}:
            raise ConfigError(f"{option.flag} requires {option.needs}: {option.why}")
    parts = dict[str, str]()
    for part in dict.fromkeys(option.part for option in given if option.part not in ("", "data")):
        fields = [f"{option.field} = {_file_value(option, value)}" for option, value in given.items() if option.part in (part, "")]
        parts[part] = f"data.{part}={{ {', '.join(fields)} }}"
    cleared = [f"data.{part}=none" for part in ("valid", "test", "generate")] if "train" in parts else []
    whole = [f"data.{option.field}={_file_value(option, value)}" for option, value in given.items() if option.part == "data"]
    return [*cleared, *parts.values(), *whole]


def _file_value(option: DataOption, value: Any) -> str:
    """Return the value of an option as TOML; an option that may be repeated takes one value or several."""
    if option.is_flag:
        return toml_value(value)
    several = [value] if isinstance(value, str | int | Path) else list(value)
    written = [quoted(Path(str(each))) if option.is_path else toml_value(each) for each in several]
    return f"[{', '.join(written)}]" if option.repeated else written[0]


def quoted(path: Path) -> str:
    """Return a path, made absolute, as a TOML string.

    Raises:
        ConfigError: the path is not UTF-8, which recipes require.
    """
    text = str(path.absolute())
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError(f"{text!a}: expected a path in UTF-8, the encoding of recipes, found other bytes; rename the file or folder")
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
    raise ConfigError(
        f"set: expected text, numbers, booleans, lists and mappings, found {value!r} of type {type(value).__name__}; convert it"
    )


def as_overrides(fields: Mapping[str, Any] | Sequence[str]) -> list[str]:
    """Convert changes of recipe fields to overrides.

    >>> as_overrides({"training.max_steps": 300, "model.norm": "rmsnorm", "model": {"d_model": 64, "position": {"kind": "rotary"}}})
    ['training.max_steps=300', 'model.norm="rmsnorm"', 'model.d_model=64', 'model.position={ "kind" = "rotary" }']

    Args:
        fields: values by dotted field name, where a mapping replaces a whole component; or mappings by table name, such as ``model``, which
            change only the fields that they contain. A list of overrides is returned unchanged.

    Raises:
        ConfigError: ``fields`` is a single string, or a value cannot be written as TOML.
    """
    if isinstance(fields, str):
        raise ConfigError(
            f"set: expected a mapping such as {{'training.max_steps': 300}}, or a list such as ['training.max_steps=300'], found {fields!r}"
        )
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
    """Rewrite errors raised in the ``with`` block to name Python arguments instead of command-line options.

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
