"""Reading of the TOML files with the words of the phrasebook."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

Table = Mapping[str, Any]


def read_table(name: str) -> Table:
    """Read the TOML file with the given name next to this module."""
    return tomllib.loads((resources.files(__package__) / name).read_text("utf-8"))
