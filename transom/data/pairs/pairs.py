"""Sentence pairs: what a translator learns from."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from transom.config.data import PairFiles
from transom.data.split import split_off
from transom.data.text.columns import read_columns
from transom.data.text.text import expanded, read_lines
from transom.errors import DataError


@dataclass(frozen=True)
class Pairs:
    """Aligned sentences.

    Attributes:
        source: source sentences.
        target: their translations, in the same order.
        name: where they come from, for people.
        lines: line of each pair in its file, from 1; None where pair ``i`` is line ``i + 1``.
    """

    source: list[str]
    target: list[str]
    name: str
    lines: list[int] | None = None

    def __len__(self) -> int:
        """Count the pairs."""
        return len(self.source)

    def line(self, sample: int) -> int:
        """Give the line number, from 1, of pair ``sample``."""
        return sample + 1 if self.lines is None else self.lines[sample]

    def place(self, sample: int) -> str:
        """Name a pair by its line, for people."""
        return f"{self.name}, line {self.line(sample)}"

    def take(self, samples: list[int], name: str) -> "Pairs":
        """Give some of the pairs, with their line numbers."""
        return Pairs([self.source[i] for i in samples], [self.target[i] for i in samples], name, [self.line(i) for i in samples])

    def reversed(self) -> "Pairs":
        """Give the pairs from their target to their source."""
        return Pairs(self.target, self.source, f"{self.name}, reversed", self.lines)


def load_pairs(files: PairFiles, root: Path) -> Pairs:
    """Read parallel text from two aligned files, or from one that holds both sides.

    Pairs with an empty side are kept: whoever trains drops and counts them.

    Args:
        files: what to read; each file may be gzipped.
        root: folder that relative paths start from.

    Returns:
        The pairs in the order of the files.

    Raises:
        DataError: a file cannot be read, a record is not as it must be, or the files differ in their number of lines.
        ConfigError: the one file is of no known format, or a field does not suit the format.
    """
    if files.pairs is None:
        assert files.source is not None and files.target is not None
        return _load_two(root / expanded(files.source), root / expanded(files.target))
    path = root / expanded(files.pairs)
    lines, (source, target) = read_columns(path, (files.source_field, files.target_field), ("source", "target"))
    return Pairs(source, target, str(path), lines)


def split_validation(pairs: Pairs, share: float = 0.01) -> tuple[Pairs, Pairs]:
    """Split validation pairs off by a hash of each pair's text; see ``split_off``."""
    return split_off(pairs, [f"{source}\0{target}" for source, target in zip(pairs.source, pairs.target, strict=True)], share, "pairs")


def together(parts: Sequence[Pairs]) -> Pairs:
    """Put pairs together, without their lines."""
    source = [text for pairs in parts for text in pairs.source]
    return Pairs(source, [text for pairs in parts for text in pairs.target], ", ".join(pairs.name for pairs in parts))


def fingerprint(*parts: Pairs, tags: Sequence[str] = ()) -> str:
    """Hash the texts of pairs in their order, and the target languages' tags, so that a run can tell whether its data are the same."""
    total = blake2b("\0".join(tags).encode(), digest_size=16)
    for pairs in parts:
        for texts in (pairs.source, pairs.target):
            for text in texts:
                total.update(text.encode() + b"\n")
            total.update(b"\0")
    return total.hexdigest()


def _load_two(source: Path, target: Path) -> Pairs:
    sides = read_lines(source), read_lines(target)
    counts = tuple(map(len, sides))
    if counts[0] != counts[1]:
        place = first_suspicious_line(*sides)
        if place > min(counts):
            hint = f"the shorter one seems to end too early, after line {place - 1:,}"
        else:
            hint = f"by their lengths, the lines stop matching near line {place:,}"
        raise DataError(
            f"{source} has {counts[0]:,} lines and {target} {counts[1]:,}, expected aligned files with as many lines;"
            f" {hint}; mend that place"
        )
    return Pairs(*sides, name=f"{source}, {target}")


def first_suspicious_line(source: list[str], target: list[str]) -> int:
    """Guess where files with unequal line counts stop being aligned.

    Takes the place k for which pairing line i with line i before it, and with the surplus skipped from it on, leaves the least sum of
    |log length ratio - its median|: the best fit of one run of surplus lines.

    Args:
        source: all source lines.
        target: all target lines, more or fewer.

    Returns:
        Line number, from 1; one more than the shorter count if the files fit up to the end of the shorter one.
    """
    a, b = (np.log1p(np.array([len(line.strip()) for line in side])) for side in (source, target))
    n, surplus = min(len(a), len(b)), len(a) - len(b)
    straight, skipped = a[:n] - b[:n], a[max(surplus, 0) :] - b[max(-surplus, 0) :]
    usual = np.median(np.concatenate([straight, skipped]))
    before = np.concatenate([[0.0], np.cumsum(np.abs(straight - usual))])
    after = np.concatenate([np.cumsum(np.abs(skipped - usual)[::-1])[::-1], [0.0]])
    total = before + after
    return int(np.flatnonzero(total <= total.min() + 1e-9)[-1]) + 1
