"""TOML as people write it: files, places in them, and ``a.b=value`` overrides."""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transom.errors import ConfigError

MOST_BYTES = 1 << 20
"""No recipe is larger than this; what is, is another kind of file."""

_TABLE = re.compile(r"\s*(\[\[|\[)\s*([^\[\]#]+?)\s*\]{1,2}\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_.\"'-]+(?:\s*\.\s*[A-Za-z0-9_\"'-]+)*)\s*=")
_PLACE = re.compile(r"(.*?) \(at (?:line (\d+), column (\d+)|(end of document))\)$", re.DOTALL)


def read_toml_text(path: Path) -> str:
    """Read a TOML file's text.

    Raises:
        ConfigError: missing, a folder, not readable, too large, or not UTF-8.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(
                f"{path}: expected a recipe of at most {MOST_BYTES} bytes, found {path.stat().st_size}; is this the right file?"
            )
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text, found byte {error.object[error.start]:#04x} at byte {error.start + 1}") from None
    except OSError as error:
        raise ConfigError(f"{path}: expected a TOML file, found none that can be read ({(error.strerror or str(error)).lower()})") from None


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Parse TOML; a syntax error is named as ``name:line:column``."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _PLACE.match(str(error))
        message, line, column = (found[1], found[2], found[3]) if found else (str(error), None, None)
        place = f"{name}:{line}:{column}" if line else f"{name}:{text.count(chr(10)) + 1}"
        raise ConfigError(f"{place}: expected TOML, found something else: {message[:1].lower()}{message[1:]}") from None


ONE_SCHEMA = ("tokenizer",)
"""Tables whose kinds have the same fields: another kind keeps the other fields, where another brick drops them."""


class Override(NamedTuple):
    """One ``a.b=value``.

    Attributes:
        path: the field's name from the outermost table inwards.
        value: what TOML makes of the text after ``=``, or that text itself.
        text: as it was given.
    """

    path: tuple[str, ...]
    value: Any
    text: str

    @property
    def depth(self) -> int:
        """How deep the field lies; a brick's ``kind`` is as high as the brick, for it replaces all of it that is there already."""
        return len(self.path) - (self.path[-1] == "kind")

    def applied(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``raw`` with the field set; a brick given as a word keeps that word as its ``kind``."""
        value: Any = self.value
        for depth in range(len(self.path) - 1, 0, -1):
            value = {self.path[depth]: value}
        return merged(raw, {self.path[0]: value}, whole=len(self.path))


def parse_override(text: str) -> Override:
    """Split ``a.b=value``.

    >>> parse_override("training.max_steps=300").value, parse_override("data.root=../data").value
    (300, '../data')
    """
    name, equals, value = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals or not all(path):
        raise ConfigError(f"--set {text}: expected FIELD=VALUE as in training.max_steps=300")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    return Override(path, parsed["value"] if list(parsed) == ["value"] else value.strip(), text)


def merged(base: Mapping[str, Any], top: Mapping[str, Any], whole: int = -1) -> dict[str, Any]:
    """Lay one table over another.

    Args:
        base: the fields to start from.
        top: the fields that win.
        whole: how many levels down a table replaces the one below instead of joining it; -1 for never.
    """
    out = dict(base)
    for name, value in top.items():
        below = {"kind": out[name]} if isinstance(out.get(name), str) else out.get(name)
        if whole != 1 and isinstance(value, dict) and isinstance(below, dict):
            same_fields = name in ONE_SCHEMA or value.get("kind") in (None, below.get("kind"))
            value = merged(below, value, whole - 1) if same_fields else value
        out[name] = value
    return out


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    r"""Find the line of a TOML text that sets a field, or the nearest thing around it.

    >>> line_of("seed = 1\n[training]\nmax_steps = 3", ("training", "max_steps"))
    3

    Tables of a list count from 0.

    >>> line_of("[[a.b]]\nc = 1\n[[a.b]]\nc = 2", ("a", "b", "1", "c"))
    4
    """
    table: tuple[str, ...] = ()
    seen = Counter[tuple[str, ...]]()
    best, line = 0, None
    for number, content in enumerate(text.split("\n"), 1):
        if header := _TABLE.match(content):
            key = table = _parts(header[2])
            if header[1] == "[[":
                key = table = (*table, str(seen[table]))
                seen[table[:-1]] += 1
        elif setting := _KEY.match(content):
            key = table + _parts(setting[1])
        else:
            continue
        if len(key) > best and key == path[: len(key)]:
            best, line = len(key), number
    return line


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in key.split("."))
