"""Character rules of SentencePiece, which the component ``Precompiled`` of the ``tokenizers`` library also has, from an unknown author.

The rules are a map from strings to strings. At each position of a text, the longest string of the map is replaced; otherwise one character
is kept. They are stored as a double array (Aoe 1989, in the layout of the Darts-clone library) and a block of results, which end in NUL.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

_Units = np.ndarray[Any, np.dtype[np.int64]]

MAX_CHARSMAP_BYTES = 3 * 2**18
"""Maximum size of character rules; those of NFKC have 237,000 bytes."""

MAX_CHARSMAP_GROWTH = 32
"""Maximum factor by which a rule may lengthen a text, in characters; the greatest of NFKC is 18."""

_MAX_RESULT_BYTES = 128
"""Maximum size of a result; the longest of NFKC has 33 bytes."""

_MAX_NODES = 2**20
"""Maximum number of nodes to visit in a double array, whose nodes may share their continuations. The rules of NFKC have about half."""

_MAX_KEY_BYTES = 64
_LEAF = 2**31
"""Bit of a unit that holds a value."""


@dataclass(frozen=True)
class Charsmap:
    """Character rules.

    Attributes:
        content: the stored form.
        rules: replacement by string.
    """

    content: bytes
    rules: dict[str, str]


def read_charsmap(content: bytes) -> Charsmap:
    """Read character rules from their stored form.

    The library follows the indices of a double array without checking them, so none may leave it, used or not.

    Raises:
        ValueError: the content is damaged or too large. The message is a noun phrase.
    """
    if not 4 <= len(content) <= MAX_CHARSMAP_BYTES:
        raise ValueError(f"character rules of {len(content):,} bytes")
    size = int.from_bytes(content[:4], "little")
    if size % 4 or size == 0 or 4 + size > len(content):
        raise ValueError(f"character rules with a table of {size:,} bytes in {len(content):,}")
    units, results = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64), content[4 + size :]
    if (longest := max(map(len, results.split(b"\0")))) > _MAX_RESULT_BYTES or not results.endswith(b"\0"):
        raise ValueError(f"character rules with a result of {longest:,} bytes or without an end")
    nodes = np.flatnonzero(units < _LEAF)
    reached = nodes ^ _offsets(units[nodes])
    if units[0] >= _LEAF or ((reached | 0xFF) >= len(units)).any():
        raise ValueError("character rules with an index outside their table")
    values = units[reached[_have_value(units[nodes])]] & (_LEAF - 1)
    if (values >= len(results)).any() or ((np.frombuffer(results, np.uint8)[values] & 0xC0) == 0x80).any():
        raise ValueError("a character rule without a result")
    try:
        results.decode()
        rules = {key.decode(): results[at : results.index(b"\0", at)].decode() for key, at in _keys(units)}
    except UnicodeDecodeError as error:
        raise ValueError("a character rule that is not UTF-8") from error
    if any(len(value) > MAX_CHARSMAP_GROWTH * len(key) for key, value in rules.items()):
        raise ValueError(f"a character rule that lengthens a text more than {MAX_CHARSMAP_GROWTH} times")
    return Charsmap(content, rules)


def _keys(units: _Units) -> Iterator[tuple[bytes, int]]:
    """Yield each string of a double array and its value, the shortest first: from the unit at q, a byte leads to q ^ offset ^ byte."""
    nodes = np.flatnonzero((units < _LEAF) & (units & 0xFF > 0))
    bases = nodes ^ (units[nodes] & 0xFF)
    order = np.argsort(bases, kind="stable")
    nodes, bases = nodes[order], bases[order]
    reached, keys, n_visited = _offsets(units[:1]), np.zeros((1, 0), np.uint8), 1
    while len(reached):
        starts = np.searchsorted(bases, reached)
        counts = np.searchsorted(bases, reached, "right") - starts
        n_visited += counts.sum()
        if n_visited > _MAX_NODES or keys.shape[1] >= _MAX_KEY_BYTES:
            raise ValueError("character rules that form a loop")
        firsts = starts - np.cumsum(counts) + counts
        found = nodes[np.repeat(firsts, counts) + np.arange(counts.sum())]
        labels = (units[found] & 0xFF).astype(np.uint8)
        keys = np.concatenate([np.repeat(keys, counts, axis=0), labels[:, None]], axis=1)
        reached = found ^ _offsets(units[found])
        has_value = _have_value(units[found])
        text, n = keys[has_value].tobytes(), keys.shape[1]
        for number, value in enumerate((units[reached[has_value]] & (_LEAF - 1)).tolist()):
            yield text[number * n : (number + 1) * n], value


def _offsets(units: _Units) -> _Units:
    return (units >> 10) << ((units & 0x200) >> 6)


def _have_value(units: _Units) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return (units >> 8 & 1) == 1
