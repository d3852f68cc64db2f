"""Splits a text longer than the context window at sentence, clause, word or character boundaries."""

import re
from collections.abc import Callable
from itertools import pairwise

from transom.errors import DataError

BOUNDARIES = (
    re.compile(r"""[.!?…]+["'”’»)\]]*(?=\s)|[。！？]+["'”’」』)]*"""),
    re.compile(r"[,;:—–](?=\s)|[、，；：]"),
    re.compile(r"\s+"),
    re.compile(r"(?s:.)"),
)
"""Patterns after which a text may be split, from the most to the least preferred: sentences, clauses, words, characters."""


def split_text(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Split a text into pieces that fit.

    A text that fits is one piece. Otherwise every sentence is a piece. A sentence that does not fit is split into as few groups of
    clauses as possible, and so on down to characters.

    Args:
        text: any text.
        fits: whether a piece is short enough; every part of a fitting piece should fit too.

    Returns:
        The pieces in order, stripped of surrounding whitespace; an empty list for a blank text.

    Raises:
        DataError: not even one character fits.
    """
    text = text.strip()
    if not text or fits(text):
        return [text] if text else []
    return [piece for sentence in _split_at_boundaries(text, 0) for piece in _split_recursively(sentence, fits, 1)]


def _split_recursively(text: str, fits: Callable[[str], bool], level: int) -> list[str]:
    """Split a text that does not fit: repeatedly take the most parts of this level that fit together."""
    if fits(text):
        return [text]
    if level == len(BOUNDARIES):
        raise DataError(f"expected a character that fits model.max_seq_len, found {text!r}; train with a larger model.max_seq_len")
    pieces, parts = [], _split_at_boundaries(text, level)
    while parts:
        n = _count_fitting(parts, fits)
        pieces += ["".join(parts[:n]).strip()] if n else _split_recursively(parts[0].strip(), fits, level + 1)
        parts = parts[max(n, 1) :]
    return [piece for piece in pieces if piece]


def _split_at_boundaries(text: str, level: int) -> list[str]:
    """Split after every boundary of a level; only whitespace around sentences is removed."""
    cuts = [0, *(found.end() for found in BOUNDARIES[level].finditer(text)), len(text)]
    parts = [text[start:end] for start, end in pairwise(cuts) if end > start]
    return [part.strip() for part in parts if part.strip()] if level == 0 else parts


def _count_fitting(parts: list[str], fits: Callable[[str], bool]) -> int:
    """Return how many leading parts fit together, by exponential and binary search."""
    n_fitting, n_too_many = 0, 1
    while n_too_many <= len(parts) and fits("".join(parts[:n_too_many]).strip()):
        n_fitting, n_too_many = n_too_many, 2 * n_too_many
    n_too_many = min(n_too_many, len(parts) + 1)
    while n_too_many - n_fitting > 1:
        middle = (n_fitting + n_too_many) // 2
        n_fitting, n_too_many = (middle, n_too_many) if fits("".join(parts[:middle]).strip()) else (n_fitting, middle)
    return n_fitting
