"""Texts longer than a model reads: what may become of them, and how many rows and tokens that makes."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from transom.errors import ConfigError, DataError

TooLong = Literal["truncate", "window", "refuse"]
"""The beginning stands for the text, all of it is read in windows, or it is refused."""


class Windows(NamedTuple):
    """What is read of texts.

    Attributes:
        rows: tokens of each window, the texts one after another; a text that the model reads whole is one window.
        counts: windows of each text.
        n_left_out: tokens of each text that are in no window.
    """

    rows: list[Sequence[int]]
    counts: list[int]
    n_left_out: list[int]


def windows_of(rows: Sequence[Sequence[int]], most: int, too_long: TooLong) -> Windows:
    """Cut texts into windows.

    Args:
        rows: tokens of each text, without special symbols.
        most: tokens that the model reads beside its special symbols.
        too_long: what becomes of a longer text.

    Raises:
        ConfigError: ``too_long`` is none of the three.
        DataError: a text is too long and is to be refused.
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
    """Refuse a fate of long texts that there is none of.

    Raises:
        ConfigError: ``found`` is not among those known.
    """
    if found not in known:
        *first, last = map(repr, known)
        raise ConfigError(f"too_long: expected {', '.join(first)} or {last}, found {found!r}")
