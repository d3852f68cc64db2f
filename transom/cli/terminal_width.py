"""Fit tables and texts into the width of the terminal. Output that goes to a file or a pipe keeps its full width."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from transom.cli.output import align_columns

INDENT = 4
"""Indent of the columns below the titles of a table that is too wide."""


def terminal_width() -> int | None:
    """Return the number of columns of the terminal; None if standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def cut_line(line: str) -> str:
    """Cut a line off at the end of the terminal."""
    return line[: terminal_width()]


def fit_text(line: str) -> str:
    """Wrap a line at spaces; the lines that follow are indented by two more spaces."""
    width = terminal_width()
    return line if width is None else textwrap.fill(line, width, subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2), **_WHOLE)


_WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
"""Options of ``textwrap`` that keep names and numbers whole."""


def fit_columns(rows: Iterable[Iterable[str]], n_left: int = 1, n_title: int = 1) -> list[str]:
    """Format rows of cells as lines with aligned columns, as ``align_columns`` does, that fit into the terminal.

    In a table that is too wide, the first ``n_title`` cells of each row stand on a line of their own, above the others, and the
    left-aligned cells below are wrapped at spaces. The right-aligned ones, which are numbers, are not.
    """
    cells = [list(row) for row in rows]
    lines, width = align_columns(cells, n_left), terminal_width()
    if width is None or max(map(len, lines)) <= width:
        return lines
    below = [row[n_title:] for row in cells]
    widths = _column_widths(below, n_left - n_title, width - INDENT)
    found = list[str]()
    for row, rest in zip(cells, below, strict=True):
        found += textwrap.wrap("  ".join(filter(None, row[:n_title])), width, subsequent_indent="  ", **_WHOLE)
        wrapped = [textwrap.wrap(cell, size, **_WHOLE) for cell, size in zip(rest, widths, strict=True)]
        for parts in zip_longest(*wrapped, fillvalue=""):
            sides = (str.ljust if place < n_left - n_title else str.rjust for place in range(len(parts)))
            line = "  ".join(side(part, size) for side, part, size in zip(sides, parts, widths, strict=True))
            found.append(f"{' ' * INDENT}{line.rstrip()}")
    return found


def _column_widths(rows: list[list[str]], n_left: int, width: int) -> list[int]:
    """Return the width of each column: the widest of the ``n_left`` first ones are narrowed, down to their longest word, until all fit."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns[:n_left]]
    for _ in range(sum(widths) + 2 * (len(widths) - 1) - width):
        wide = [place for place in range(n_left) if widths[place] > words[place]]
        if wide:
            widths[max(wide, key=lambda place: widths[place])] -= 1
    return widths


def split_columns(rows: Iterable[Iterable[str]], n_left: int = 1, indent: int = 0) -> Iterator[str]:
    """Format rows of cells as lines with aligned columns; a table that is wider than the terminal continues below itself.

    The first ``n_left`` columns are left-aligned, and stand in each part.
    """
    columns, width = list(zip(*rows, strict=True)), terminal_width()
    sizes = [2 + max(map(len, column)) for column in columns]
    place = n_left
    while place == n_left or place < len(columns):
        end, free = place + 1, 0 if width is None else width + 2 - indent - sum(sizes[:n_left])
        while end < len(columns) and (width is None or sum(sizes[place : end + 1]) <= free):
            end += 1
        if place > n_left:
            yield ""
        part = columns[:n_left] + columns[place:end]
        yield from (f"{' ' * indent}{line}" for line in align_columns(zip(*part, strict=True), n_left))
        place = end
