"""Texts longer than the context window: truncation, splitting into windows, or an error."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from transom.data.labeled.text_pairs import TokenPair, TokenRow, n_added_tokens, truncate
from transom.data.tokenizer.special_tokens import SpecialTokens
from transom.errors import ConfigError, DataError
from transom.files.message import phrase

LongTextPolicy = Literal["truncate", "window", "refuse"]
"""Treatment of a text longer than the context window: keep the first tokens, read the text in windows, or raise an error."""


class Windows(NamedTuple):
    """Texts split into windows that fit the context window.

    Attributes:
        rows: token IDs of each window, text after text; a text that fits is one window.
        counts: number of windows of each text.
        n_dropped_tokens: number of tokens cut off at the end of each text, or of both texts of a pair.
    """

    rows: list[TokenRow]
    counts: list[int]
    n_dropped_tokens: list[int]


def split_windows(rows: Sequence[TokenRow], max_seq_len: int, special: SpecialTokens, too_long: LongTextPolicy) -> Windows:
    """Split texts into windows.

    Args:
        rows: token IDs of each text or pair of texts, without special tokens.
        max_seq_len: maximum tokens per window, including special tokens.
        special: special tokens of the tokenizer.
        too_long: treatment of texts with more tokens.

    Raises:
        ConfigError: ``too_long`` is invalid, or "window" for a pair of texts.
        DataError: a text is too long and ``too_long`` is "refuse".
    """
    check_long_text_policy(too_long, "truncate", "window", "refuse")
    single = [row for row in rows if not isinstance(row, TokenPair)]
    if too_long == "window" and len(single) < len(rows):
        raise ConfigError("too_long: expected 'truncate' or 'refuse' for pairs of texts, found 'window'; choose one of them")
    most = [max_seq_len - n_added_tokens(row, special) for row in rows]
    long_rows = [number for number, row in enumerate(rows) if len(row) > most[number]]
    if long_rows and too_long == "refuse":
        number = long_rows[0]
        of_single = "shorten the text, or set too_long to 'truncate' or 'window'"
        advice = "shorten the text, or set too_long to 'truncate'" if isinstance(rows[number], TokenPair) else of_single
        raise DataError(f"text {number + 1}: expected at most {most[number]:,} tokens, found {len(rows[number]):,}; {advice}")
    if too_long == "window":
        starts = [range(0, max(len(row), 1), n) for row, n in zip(single, most, strict=True)]
        windows: list[TokenRow] = [
            row[start : start + of_text.step] for row, of_text in zip(single, starts, strict=True) for start in of_text
        ]
        return Windows(windows, [*map(len, starts)], [0] * len(rows))
    return Windows(
        [truncate(row, max_seq_len, special) for row in rows],
        [1] * len(rows),
        [max(len(row) - n, 0) for row, n in zip(rows, most, strict=True)],
    )


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
