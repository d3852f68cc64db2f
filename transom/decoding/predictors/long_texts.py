"""Texts longer than the context window: truncation, splitting into windows, or an error."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from transom.errors import ConfigError, DataError
from transom.files.message import phrase

LongTextPolicy = Literal["truncate", "window", "refuse"]
"""Treatment of a text longer than the context window: keep the first tokens, read the text in windows, or raise an error."""


class Windows(NamedTuple):
    """Texts split into windows that fit the context window.

    Attributes:
        rows: token IDs of each window, text after text; a text that fits is one window.
        counts: number of windows of each text.
        n_dropped_tokens: number of tokens cut off at the end of each text.
    """

    rows: list[Sequence[int]]
    counts: list[int]
    n_dropped_tokens: list[int]


def split_windows(rows: Sequence[Sequence[int]], max_tokens: int, too_long: LongTextPolicy) -> Windows:
    """Split texts into windows.

    Args:
        rows: token IDs of each text, without special tokens.
        max_tokens: maximum tokens per window, without special tokens.
        too_long: treatment of texts with more tokens.

    Raises:
        ConfigError: ``too_long`` is invalid.
        DataError: a text is too long and ``too_long`` is "refuse".
    """
    check_long_text_policy(too_long, "truncate", "window", "refuse")
    long_rows = [number for number, row in enumerate(rows) if len(row) > max_tokens]
    if long_rows and too_long == "refuse":
        raise DataError(
            f"text {long_rows[0] + 1}: expected at most {max_tokens:,} tokens, found {len(rows[long_rows[0]]):,}; shorten the text, or set"
            " too_long to 'truncate' or 'window'"
        )
    cut = too_long == "truncate"
    starts = [range(0, 1 if cut else max(len(row), 1), max_tokens) for row in rows]
    windows = [row[start : start + max_tokens] for row, of_text in zip(rows, starts, strict=True) for start in of_text]
    return Windows(windows, [len(of_text) for of_text in starts], [max(len(row) - max_tokens, 0) if cut else 0 for row in rows])


def check_length(name: str, n: int, most: int) -> None:
    """Check the number of tokens of a text that must not be cut.

    Args:
        name: name of the text, for the message.
        n: number of its tokens, without special tokens.
        most: the largest number that fits the context window.

    Raises:
        DataError: there are more.
    """
    if n > most:
        raise DataError(
            phrase(
                "errors.too_long", "{name}: expected at most {most} tokens, found {found}; shorten the text", name=name, most=most, found=n
            )
        )


def check_long_text_policy(found: object, *known: str) -> None:
    """Check the value of a ``too_long`` option.

    Raises:
        ConfigError: ``found`` is not among the ``known`` values.
    """
    if found not in known:
        *first, last = map(repr, known)
        raise ConfigError(f"too_long: expected {', '.join(first)} or {last}, found {found!r}")
