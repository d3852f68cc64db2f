"""The packaged word tables."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

Table = Mapping[str, Any]


def read_table(name: str) -> Table:
    """Read one of the TOML files next to this module."""
    return tomllib.loads((resources.files(__package__) / name).read_text("utf-8"))
