"""Print results to standard output as text or JSON, and notes to standard error."""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from transom.files.limits import MAX_ERROR_CHARACTERS

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and show no progress.")]
JsonAnswersOption = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the answers as one JSON list, or as one JSON object per line if lines are typed or --line-buffered is given."
    ),
]


def print_result(value: Any, as_json: bool, lines: Iterable[str]) -> None:
    """Print a result as one line of JSON or as lines of text.

    Args:
        value: the result as JSON-serializable data. NaN and infinity are printed as null.
        as_json: print ``value`` instead of ``lines``.
        lines: the result as lines of text.
    """
    if as_json:
        from transom.checkpoints.metrics_log import replace_non_finite

        print(json.dumps(replace_non_finite(value), ensure_ascii=False, allow_nan=False))
    else:
        for line in lines:
            print(show_controls(line) if sys.stdout.isatty() else line)


def show_controls(text: str) -> str:
    r"""Replace control characters, which a terminal would obey, by visible symbols. Tabs and line breaks are kept.

    >>> show_controls("a\tb\x1b[2J")
    'a\tb␛[2J'
    """
    from transom.inspection.pages.markup import escape_control_characters

    return "".join(part if part in ("\t", "\n") else escape_control_characters(part) for part in re.split("([\t\n])", text))


def select_options(parameters: Mapping[str, Any], options: Any) -> dict[str, Any]:
    """Select the parameters of a command that are also options of the function that the command calls.

    Args:
        parameters: the command's parameters by name.
        options: the ``TypedDict`` that declares the function's options.
    """
    return {name: value for name, value in parameters.items() if name in options.__annotations__}


def print_note(line: str) -> None:
    """Print a line to standard error."""
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)


def print_error(error: object) -> None:
    """Print an error as one line to standard error, while the command continues."""
    print_note(one_line(f"error: {error}"))


def one_line(text: str, max_characters: int = MAX_ERROR_CHARACTERS) -> str:
    r"""Escape a text to one line of printable characters.

    The middle of a long text is cut out, because the end of an error message names the remedy.

    >>> one_line("a\nb\x1b[2J\u202ec")
    'a\\nb\\x1b[2J\\u202ec'
    >>> one_line("error: expected " + "x" * 100 + "; name another file", 40)
    'error: expected xx ... name another file'
    """
    if len(text) > 2 * max_characters:  # shorten before escaping, because the text may be a whole file
        text = text[:max_characters] + text[-max_characters:]
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text.strip())
    if len(line) <= max_characters:
        return line
    gap = " ... "
    end = (max_characters - len(gap)) // 2
    return line[: max_characters - len(gap) - end] + gap + line[-end:]


def note_too_long(n_too_long: int, n: int, noun: str, max_tokens: int, treatment: str, n_dropped_tokens: int = 0) -> None:
    """Print a note on how many inputs exceed the context window and how these inputs were treated, if there are any.

    Args:
        n_too_long: number of inputs longer than the context window.
        n: number of inputs.
        noun: plural noun for the inputs.
        max_tokens: context window in tokens.
        treatment: description of the treatment of these inputs, such as ``TRUNCATED_NOTE``.
        n_dropped_tokens: number of tokens that the model did not read.
    """
    if n_too_long:
        left_out = f", {n_dropped_tokens:,} tokens dropped" if n_dropped_tokens else ""
        print_note(f"{n_too_long:,} of {n:,} {noun} exceed the context window of {max_tokens:,} tokens: {treatment}{left_out}")


def align_columns(rows: Iterable[Iterable[str]], n_left: int = 1) -> list[str]:
    """Format rows of cells as lines with aligned columns.

    The first ``n_left`` columns are left-aligned, and the other columns are right-aligned.

    >>> align_columns([["seed", "BLEU"], ["1", "39.51"]])
    ['seed   BLEU', '1     39.51']
    """
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = [str.ljust if place < n_left else str.rjust for place in range(len(widths))]
    return ["  ".join(side(c, w) for side, c, w in zip(sides, row, widths, strict=True)).rstrip() for row in cells]
