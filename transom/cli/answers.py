"""What a verb prints: its answer on standard output, for people or as JSON; everything about its progress on standard error."""

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text, and no progress.")]


def answer(value: Any, as_json: bool, lines: Iterable[str]) -> None:
    """Print a verb's answer: ``value`` as one line of JSON, numbers that are not finite as null; or ``lines``."""
    if as_json:
        from transom.checkpoints.metrics import finite

        print(json.dumps(finite(value), ensure_ascii=False, allow_nan=False))
    else:
        for line in lines:
            print(line)


def options_of(parameters: Mapping[str, Any], options: Any) -> dict[str, Any]:
    """Collect those of a verb's parameters that are options of what it calls, by the same name.

    Args:
        parameters: of the verb, by name.
        options: a ``TypedDict`` of all options there are.
    """
    return {name: value for name, value in parameters.items() if name in options.__annotations__}


def note(line: str) -> None:
    """Tell a person something that is not the answer."""
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


def note_longer(n_longer: int, n: int, what: str, most: int, fate: str, n_left_out: int = 0) -> None:
    """Tell a person, once, how many were longer than the model reads and what became of them; nothing where there are none.

    Args:
        n_longer: how many were.
        n: of how many.
        what: they are, in the plural.
        most: tokens that the model reads.
        fate: what became of them.
        n_left_out: tokens that were not read.
    """
    if n_longer:
        left_out = f", {n_left_out:,} tokens left out" if n_left_out else ""
        note(f"{n_longer:,} of {n:,} {what} longer than the {most:,} tokens that the model reads: {fate}{left_out}")


def table(rows: Iterable[Iterable[str]]) -> list[str]:
    """Lay out rows of cells: the first column to the left, the others to the right.

    >>> table([["seed", "BLEU"], ["1", "39.51"]])
    ['seed   BLEU', '1     39.51']
    """
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]).rstrip() for row in cells]
