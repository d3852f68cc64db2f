"""Texts longer than the context window: truncation, splitting into windows, or an error."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from transom.errors import ConfigError, DataError

TooLong = Literal["truncate", "window", "refuse"]
"""Treatment of a text longer than the context window: keep its first tokens, read it in windows, or raise an error."""


class Windows(NamedTuple):
    """Texts split into windows that fit the context window.

    Attributes:
        rows: token IDs of each window, text by text; a text that fits is one window.
        counts: number of windows of each text.
        n_left_out: number of truncated tokens of each text.
    """

    rows: list[Sequence[int]]
    counts: list[int]
    n_left_out: list[int]


def windows_of(rows: Sequence[Sequence[int]], most: int, too_long: TooLong) -> Windows:
    """Split texts into windows.

    Args:
        rows: token IDs of each text, without special tokens.
        most: maximum tokens per window, without special tokens.
        too_long: treatment of a longer text.

    Raises:
        ConfigError: ``too_long`` is invalid.
        DataError: a text is too long and ``too_long`` is "refuse".
    """
    check_too_long(too_long, "truncate", "window", "refuse")
    longer = [number for number, row in enumerate(rows) if len(row) > most]
    if longer and too_long == "refuse":
        raise DataError(f"text {longer[0] + 1}: expected at most {most:,} tokens, found {len(rows[longer[0]]):,}; shorten it")
    cut = too_long == "truncate"
    starts = [range(0, 1 if cut else max(len(row), 1), most) for row in rows]
    windows = [row[start : start + most] for row, of_text in zip(rows, starts, strict=True) for start in of_text]
    return Windows(windows, [len(of_text) for of_text in starts], [max(len(row) - most, 0) if cut else 0 for row in rows])


def check_too_long(found: object, *known: str) -> None:
    """Check a ``too_long`` option.

    Raises:
        ConfigError: ``found`` is not among the ``known`` values.
    """
    if found not in known:
        *first, last = map(repr, known)
        raise ConfigError(f"too_long: expected {', '.join(first)} or {last}, found {found!r}")
