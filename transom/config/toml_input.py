"""Read recipes in TOML: size checks, locations of fields, and ``a.b=value`` overrides."""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from transom.errors import ConfigError
from transom.files.limits import MAX_DEPTH, MAX_DIGITS, MAX_RECIPE_BYTES, MAX_RECIPE_VALUES
from transom.files.regular_files import read_regular_file

_TABLE = re.compile(r"\s*+(\[\[?)\s*+([^\[\]#]++)\]{1,2}\s*+(#.*)?$")
_KEY = re.compile(r"\s*+((?:[A-Za-z0-9_\"'-]++|\s*+\.\s*+)++)\s*+=")
_PLACE = re.compile(r"(.*?) \(at (?:line (\d+), column (\d+)|(end of document))\)$", re.DOTALL)


def read_toml_text(path: Path) -> str:
    """Return the text of a TOML file, with every line end as a newline.

    Raises:
        ConfigError: the file is missing, a folder, not readable, too large, or not UTF-8.
    """
    try:
        text = read_regular_file(path, MAX_RECIPE_BYTES, "a recipe", ConfigError).decode("utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: expected UTF-8 text, found {error.object[error.start]:#04x} as byte {error.start + 1}; save the file as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file ({(error.strerror or str(error)).lower()})") from None


_TOKEN = re.compile(
    r'''(?P<string>"""(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5}|\Z)|"(?:[^"\\\n]++|\\.)*+(?:"|(?=\n)|\Z)'''
    r"""|'''(?:[^']++|'(?!''))*+(?:'{3,5}|\Z)|'[^'\n]*+(?:'|(?=\n)|\Z))"""
    r"""|\#[^\n]*+|(?P<bare>[^\s"'\#\[\]{}=,.]++)|(?P<mark>[\[\]{}=,.\n])""",
    re.DOTALL,
)
"""TOML tokens: strings, also unterminated ones; comments; names, numbers and other words between dots; and punctuation."""


class _TomlScanner:
    """Check nesting depth, number of values and digits of a TOML text without parsing it.

    Names are left of ``=``, at the start of a line or in an inline table. Each part of a dotted name is a level.
    """

    def __init__(self, name: str) -> None:
        """Prepare to check a text, which errors call ``name``."""
        self.name, self.line, self.values = name, 1, 0
        self.header = 0  # levels of the current table
        self.depth = 0  # levels of the current name
        self.open: list[tuple[str, int]] = []  # open brackets, each with the levels outside it
        self.of_name, self.in_header = True, False

    def read(self, text: str) -> None:
        """Raise ConfigError if the text exceeds a limit."""
        for token in _TOKEN.finditer(text):
            if token["mark"] is not None:
                self._mark(token["mark"])
            elif token["bare"] is not None and not self.of_name:
                self._digits(token["bare"])
            if token["string"] is not None:
                self.line += token["string"].count("\n")

    @property
    def _place(self) -> str:
        return self.name if self.name.startswith("--set ") else f"{self.name}:{self.line}"

    def _mark(self, mark: str) -> None:
        if mark == "\n":
            self.line += 1
            if not self.open:
                self.of_name, self.in_header, self.depth = True, False, self.header
        elif mark == "=":
            self._deeper()
            self.of_name = False
        elif mark == ".":
            if self.of_name:
                self._deeper()
        elif mark == ",":
            bracket, outside = self.open[-1] if self.open else ("", 0)
            self.depth, self.of_name = outside + (bracket == "["), bracket == "{"
            self._another()
        elif mark in "[{":
            self._opened(mark)
        elif self.in_header:
            self.in_header, self.header = False, self.depth
        elif self.open:
            self.depth = self.open.pop()[1]
            self.of_name = False

    def _opened(self, mark: str) -> None:
        if self.of_name and not self.open and mark == "[":
            self.depth, self.in_header = self.depth if self.in_header else 0, True
            self._deeper()
            return
        self.open.append((mark, self.depth))
        self.of_name = mark == "{"
        if mark == "[":  # inline tables add the levels of their names
            self._deeper()

    def _deeper(self) -> None:
        self.depth += 1
        self._another()
        if self.depth > MAX_DEPTH:
            raise ConfigError(
                f"{self._place}: expected tables, lists and dotted names at most {MAX_DEPTH} levels deep, found more; use fewer levels"
            )

    def _another(self) -> None:
        self.values += 1
        if self.values > MAX_RECIPE_VALUES:
            raise ConfigError(
                f"{self._place}: expected at most {MAX_RECIPE_VALUES:,} names and list elements, found more; is this a recipe?"
            )

    def _digits(self, word: str) -> None:
        if len(word) > MAX_DIGITS and word[:1] in "+-0123456789":
            raise ConfigError(
                f"{self._place}: expected a number of at most {MAX_DIGITS} digits, found a number of {len(word):,}; write a shorter one"
            )


def check_toml(text: str, name: str) -> None:
    """Raise an error if parsing a TOML text would need too much memory, time or recursion; the check takes linear time.

    Args:
        text: the text.
        name: name of the text in errors, such as its path.

    Raises:
        ConfigError: the text exceeds a limit of ``files.limits``.
    """
    if (size := len(text.encode(errors="surrogatepass"))) > MAX_RECIPE_BYTES:
        raise ConfigError(f"{name}: expected at most {MAX_RECIPE_BYTES:,} bytes, found {size:,}; is this a recipe?")
    _TomlScanner(name).read(text)


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """Parse TOML; an error begins with the place of a syntax error as ``name:line:column``."""
    check_toml(text, name)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _PLACE.match(str(error))
        message, line, column = (found[1], found[2], found[3]) if found else (str(error), None, None)
        place = f"{name}:{line}:{column}" if line else f"{name}:{text.count(chr(10)) + 1}"
        raise ConfigError(f"{place}: invalid TOML: {message[:1].lower()}{message[1:]}") from None


SHARED_SCHEMA_TABLES = ("tokenizer",)
"""Tables whose kinds share all fields: changing ``kind`` keeps the other fields, unlike for other components."""


class OptionOverride(str):
    """An override ``a.b=value`` that an option such as ``--steps 10`` stands for.

    Attributes:
        option: the option with its value, which errors name in place of ``--set``.
    """

    option: str

    def __new__(cls, override: str, option: str) -> Self:
        """Create the override with the option that errors name."""
        new = super().__new__(cls, override)
        new.option = option
        return new


class Override(NamedTuple):
    """An override ``a.b=value``.

    Attributes:
        path: the parts of the field's dotted name.
        value: the text after ``=`` parsed as TOML, or as a string if it is not TOML.
        option: the option that sets the field, such as ``--set a.b=value``.
    """

    path: tuple[str, ...]
    value: Any
    option: str

    @property
    def depth(self) -> int:
        """Number of names in the path, by which overrides are sorted.

        A final ``kind`` is not counted: ``model.norm.kind`` replaces the whole component, as ``model.norm`` does.
        """
        return len(self.path) - (self.path[-1] == "kind")

    def applied(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``raw`` with the field set; a component above the field that is given by name becomes a table with ``kind``."""
        value: Any = self.value
        for depth in range(len(self.path) - 1, 0, -1):
            value = {self.path[depth]: value}
        return merge_tables(raw, {self.path[0]: value}, whole=len(self.path))

    def is_named_in(self, message: str, table: tuple[str, ...]) -> bool:
        """Return whether a message about a table names the field: by a dotted name, or within the table by its last part."""
        names = [tuple(name.strip(".").split(".")) for name in re.findall(r"[\w.-]+", message)]
        path = self.path[:-1] if self.path[-1] == "kind" else self.path
        dotted = [name for name in names if len(name) > 1]
        return any(path[: len(name)] == name[: len(path)] for name in dotted) or (bool(table) and path[-1:] in names)


def parse_override(text: str) -> Override:
    """Parse ``a.b=value``.

    >>> parse_override("training.max_steps=300").value, parse_override("data.root=../data").value
    (300, '../data')
    """
    name, equals, value = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    if not equals or not all(path):
        raise ConfigError(f"--set {text}: expected FIELD=VALUE as in training.max_steps=300")
    if re.search("[\ud800-\udfff]", text):
        raise ConfigError(f"--set {text[:80]!a}: expected UTF-8, the encoding of recipes, found other bytes; encode the override in UTF-8")
    if len(path) > MAX_DEPTH:
        raise ConfigError(
            f"--set {name:.80}: expected a name of at most {MAX_DEPTH} parts, found {len(path):,}; give the name of a recipe field"
        )
    check_toml(f"value = {value}", f"--set {name:.80}")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    option = text.option if isinstance(text, OptionOverride) else f"--set {text}"
    return Override(path, parsed["value"] if list(parsed) == ["value"] else value.strip(), option)


def merge_tables(base: Mapping[str, Any], top: Mapping[str, Any], whole: int = -1) -> dict[str, Any]:
    """Return ``base`` with the fields of ``top``; a component with another ``kind`` is replaced, other tables are merged.

    Args:
        base: the fields to start from.
        top: the fields that take precedence.
        whole: depth at which tables are replaced instead of merged; -1 for never.
    """
    out = dict(base)
    for name, value in top.items():
        below = {"kind": out[name]} if isinstance(out.get(name), str) else out.get(name)
        if whole != 1 and isinstance(value, dict) and isinstance(below, dict):
            same_fields = name in SHARED_SCHEMA_TABLES or value.get("kind") in (None, below.get("kind"))
            value = merge_tables(below, value, whole - 1) if same_fields else value
        out[name] = value
    return out


def find_line(text: str, path: tuple[str, ...]) -> int | None:
    r"""Return the line of a TOML text that sets a field, or the closest enclosing table.

    >>> find_line("seed = 1\n[training]\nmax_steps = 3", ("training", "max_steps"))
    3

    Tables of a list are numbered from 0.

    >>> find_line("[[a.b]]\nc = 1\n[[a.b]]\nc = 2", ("a", "b", "1", "c"))
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
