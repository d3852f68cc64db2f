"""docs/troubleshooting.md quotes messages that exist, and some of every module that raises an error of the user."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.size import ROOT
from transom import errors

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.*?) \| (.*) \|$", PAGE, re.MULTILINE)
QUOTES = [quote for message, _ in ROWS if message not in ("message", "---") for quote in re.findall(r"`([^`]+)`", message)]
ERRORS = {name for name in vars(errors) if name.endswith("Error")} | {"ProcessLostError", "ReplicaError"}
MIN_CHARACTERS = 10
"""The longest part of a quote between two ``...`` has at least this many characters, so that it finds its message and no other."""

GENERAL = {"expected ..., found ..."}
"""The form of most messages, not one of them."""


def text_of(node: ast.expr) -> str | None:
    """Return the text of a string, with a NUL in place of each value that it formats."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
    return None


@cache
def strings_of(path: Path) -> tuple[str, ...]:
    """Return all strings of a source file except docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return tuple(text for node in ast.walk(tree) if isinstance(node, ast.expr) and id(node) not in docstrings and (text := text_of(node)))


def sources() -> Iterator[Path]:
    """Yield the source files of the package."""
    yield from sorted((ROOT / "transom").rglob("*.py"))


def is_in(quote: str, text: str) -> bool:
    """Return whether a message contains the parts of a quote in order.

    >>> is_in("expected ... lines, found", "a: expected ? lines, found ?"), is_in("expected 3 lines", "expected ? lines")
    (True, False)
    """
    at = 0
    for part in filter(None, (part.strip() for part in quote.split("..."))):
        if (at := text.find(part, at)) < 0:
            return False
        at += len(part)
    return True


def raises_errors(path: Path) -> bool:
    """Return whether a source file makes an error that a user sees."""
    calls = (node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call))
    return any(ast.unparse(call.func).split(".")[-1] in ERRORS for call in calls)


def test_every_quoted_message_exists() -> None:
    quotes = {*QUOTES} - GENERAL
    assert all(max(map(len, quote.split("..."))) >= MIN_CHARACTERS for quote in quotes)
    texts = {text for path in sources() for text in strings_of(path)}
    assert not sorted(quote for quote in quotes if not any(is_in(quote, text) for text in texts))


def test_every_module_that_raises_an_error_is_on_the_page() -> None:
    raising = [path for path in sources() if path != ROOT / "transom" / "errors.py" and raises_errors(path)]
    assert len(raising) > 90
    quotes = {*QUOTES} - GENERAL
    missing = [
        path.relative_to(ROOT).as_posix()
        for path in raising
        if not any(is_in(quote, text) for quote in quotes for text in strings_of(path))
    ]
    assert not missing, "add a message of each of these files to docs/troubleshooting.md"


def test_each_row_has_a_remedy_and_no_message_is_there_twice() -> None:
    assert all(remedy.endswith(".") for message, remedy in ROWS if message not in ("message", "---"))
    assert len(QUOTES) == len({*QUOTES})
