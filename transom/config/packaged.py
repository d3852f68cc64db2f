"""Packaged recipes and presets; this module does not import pydantic, which keeps ``--help`` fast."""

import tomllib
from importlib import resources
from typing import Any

from transom.config.suggestions import suggest
from transom.config.toml_input import merge_tables
from transom.errors import ConfigError


def packaged_recipes() -> dict[str, str]:
    """Return the TOML text of each packaged recipe, by name."""
    return _packaged("recipes")


def packaged_presets() -> dict[str, dict[str, Any]]:
    """Return the tables of each packaged preset (a published architecture), by name: its ``model`` fields, and facts such as ``source``.

    A file holds a family: tables that all its presets share, and a table ``presets.NAME`` per preset, which takes precedence over them.
    """
    presets = dict[str, dict[str, Any]]()
    for text in _packaged("presets").values():
        family = tomllib.loads(text)
        own = family.pop("presets")
        presets |= {name: merge_tables(family, tables) for name, tables in own.items()}
    return presets


def packaged_preset(name: object, place: str = "preset") -> dict[str, Any]:
    """Return the tables of the preset called ``name``.

    Raises:
        ConfigError: there is no such preset; the message begins with ``place``.
    """
    presets = packaged_presets()
    if not isinstance(name, str) or name not in presets:
        hint = suggest(str(name), list(presets), "`transom recipes presets` lists them")
        raise ConfigError(f"{place}: expected the name of a preset, found {name!r}; {hint}")
    return presets[name]


def _packaged(folder: str) -> dict[str, str]:
    files = (resources.files("transom") / folder).iterdir()
    return {file.name.removesuffix(".toml"): file.read_text("utf-8") for file in sorted(files, key=str) if file.name.endswith(".toml")}
