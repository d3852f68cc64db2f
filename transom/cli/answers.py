"""What a verb prints: its answer on standard output, for people or as JSON; everything about its progress on standard error."""

import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text, and no progress.")]


def answer(value: Any, as_json: bool, lines: Iterable[str]) -> None:
    """Print a verb's answer: ``value`` as one line of JSON, numbers that are not finite as null; or ``lines``."""
    if as_json:
        from transom.weights.metrics import finite

        print(json.dumps(finite(value), ensure_ascii=False, allow_nan=False))
    else:
        for line in lines:
            print(line)


def note(line: str) -> None:
    """Tell a person something that is not the answer."""
    print(line, file=sys.stderr, flush=True)


def table(rows: Iterable[Iterable[str]]) -> list[str]:
    """Lay out rows of cells: the first column to the left, the others to the right.

    >>> table([["seed", "BLEU"], ["1", "39.51"]])
    ['seed   BLEU', '1     39.51']
    """
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip() for row in cells]
