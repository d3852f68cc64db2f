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
    """Split a text into pieces for which ``fits`` is True.

    A text that fits is one piece. Otherwise every sentence is a piece. A sentence that does not fit is split into as few runs of
    clauses as possible, a clause that does not fit into runs of words, and a word into runs of characters.

    Args:
        text: any text.
        fits: returns whether a piece is short enough; if a piece fits, every part of that piece should fit too.

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
    """Split a text at the boundaries of ``level``, each piece with as many parts as fit; split parts that do not fit at the next level."""
    if fits(text):
        return [text]
    if level == len(BOUNDARIES):
        raise DataError(f"expected every character to fit model.max_seq_len, found {text!r}; train with a larger model.max_seq_len")
    pieces, parts = [], _split_at_boundaries(text, level)
    while parts:
        n = _count_fitting(parts, fits)
        pieces += ["".join(parts[:n]).strip()] if n else _split_recursively(parts[0].strip(), fits, level + 1)
        parts = parts[max(n, 1) :]
    return [piece for piece in pieces if piece]


def _split_at_boundaries(text: str, level: int) -> list[str]:
    """Split after every boundary of a level; whitespace is removed around sentences only."""
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
