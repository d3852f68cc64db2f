"""Printing: results go to standard output as text or JSON, notes and progress to standard error."""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, without progress.")]
JsonAnswersOption = Annotated[
    bool,
    typer.Option("--json", help="Print the answers as a JSON list; one by one in a terminal and with --line-buffered. No progress."),
]


def print_result(value: Any, as_json: bool, lines: Iterable[str]) -> None:
    """Print a result: ``value`` as one line of JSON, with non-finite numbers as null, or ``lines`` of text."""
    if as_json:
        from transom.checkpoints.metrics_log import replace_non_finite

        print(json.dumps(replace_non_finite(value), ensure_ascii=False, allow_nan=False))
    else:
        for line in lines:
            print(show_controls(line) if sys.stdout.isatty() else line)


def show_controls(text: str) -> str:
    r"""Replace the control characters that a terminal would obey by symbols; tabs and line breaks stay.

    >>> show_controls("a\tb\x1b[2J")
    'a\tb␛[2J'
    """
    from transom.inspection.markup import escape_control_characters

    return "".join(part if part in ("\t", "\n") else escape_control_characters(part) for part in re.split("([\t\n])", text))


def select_options(parameters: Mapping[str, Any], options: Any) -> dict[str, Any]:
    """Select the parameters of a command that the called function takes under the same name.

    Args:
        parameters: the command's parameters by name.
        options: the ``TypedDict`` of the function's options.
    """
    return {name: value for name, value in parameters.items() if name in options.__annotations__}


def print_note(line: str) -> None:
    """Print a line to standard error."""
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


def note_too_long(n_too_long: int, n: int, noun: str, max_tokens: int, treatment: str, n_dropped_tokens: int = 0) -> None:
    """Report how many inputs exceed the context window and how they were treated; print nothing if none does.

    Args:
        n_too_long: number of inputs longer than the context window.
        n: number of inputs.
        noun: plural noun for the inputs.
        max_tokens: context window in tokens.
        treatment: how longer inputs were treated.
        n_dropped_tokens: number of tokens that were not read.
    """
    if n_too_long:
        left_out = f", {n_dropped_tokens:,} tokens dropped" if n_dropped_tokens else ""
        print_note(f"{noun} longer than the context window of {max_tokens:,} tokens: {n_too_long:,} of {n:,}, {treatment}{left_out}")


def align_columns(rows: Iterable[Iterable[str]], n_left: int = 1) -> list[str]:
    """Format rows of cells as aligned lines: the first ``n_left`` columns left-aligned, the others right-aligned.

    >>> align_columns([["seed", "BLEU"], ["1", "39.51"]])
    ['seed   BLEU', '1     39.51']
    """
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [str.ljust if place < n_left else str.rjust for place in range(len(widths))]
    return ["  ".join(side(c, w) for side, c, w in zip(sides, row, widths, strict=True)).rstrip() for row in cells]
