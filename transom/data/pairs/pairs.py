"""Reading of sentence pairs, the training data of translation models."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Self

import numpy as np

from transom.config.data import PairFilesConfig
from transom.data.split import holdout
from transom.data.text.table_columns import SOURCE, TARGET
from transom.data.text.tabular import read_table
from transom.data.text.text_io import expand_path, read_lines
from transom.errors import DataError


@dataclass(frozen=True)
class Pairs:
    """Data set of sentence pairs.

    Other tasks use this class too, with a prompt and its answer or a text and its class as a pair.

    Attributes:
        source: source sentence of each pair.
        target: target sentence of each pair, the translation of the source sentence.
        name: origin of the pairs, for messages.
        lines: line number of each pair in its file, starting at 1. None if pair ``i`` is in line ``i + 1``.
        notes: messages about what was recognized or guessed while reading the file, such as its header.
    """

    source: list[str]
    target: list[str]
    name: str
    lines: list[int] | None = None
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.source)

    @property
    def columns(self) -> tuple[list[str], ...]:
        """All columns, which identify the data set."""
        return self.source, self.target

    def line_number(self, sample: int) -> int:
        return sample + 1 if self.lines is None else self.lines[sample]

    def describe_sample(self, sample: int) -> str:
        """Return the origin and the line number of a pair as text, for messages."""
        return f"{self.name}, line {self.line_number(sample)}"

    def select(self, samples: list[int], name: str) -> Self:
        """Return the pairs at these indices with their line numbers, as a data set of this name."""
        notes = self.notes if name == self.name else ()
        lines = [self.line_number(i) for i in samples]
        source, target = ([side[i] for i in samples] for side in (self.source, self.target))
        return replace(self, source=source, target=target, name=name, lines=lines, notes=notes)

    def swapped(self) -> "Pairs":
        """Return the pairs with source and target swapped."""
        return Pairs(self.target, self.source, f"{self.name}, reversed", self.lines, self.notes)


def load_pairs(files: PairFilesConfig, root: Path) -> Pairs:
    """Read parallel text from two aligned files, or from one file with both sides.

    Pairs with an empty side are returned too. ``PairLoader`` drops them later.

    Args:
        files: the files to read, which may be gzipped.
        root: folder to which the paths in ``files`` are relative.

    Returns:
        The pairs in the order of the files.

    Raises:
        DataError: a file cannot be read, a record is malformed, or the files differ in their number of lines.
        ConfigError: the format of the single file is unknown, or a field does not fit the format.
    """
    if files.pairs is None:
        assert files.source is not None and files.target is not None
        return _load_aligned_files(root / expand_path(files.source), root / expand_path(files.target))
    path = root / expand_path(files.pairs)
    lines, (source, target), notes, _ = read_table(path, (SOURCE, TARGET), (files.source_field, files.target_field), files.header)
    return Pairs(source, target, str(path), lines, notes)


def split_validation(pairs: Pairs, fraction: float = 0.01, least: int = 0) -> tuple[Pairs, Pairs]:
    """Split pairs into training and validation pairs by a hash of each pair's text; see ``holdout``.

    Args:
        pairs: all pairs.
        fraction: approximate fraction of the pairs to hold out.
        least: approximate minimum number of pairs to hold out, up to 10% of all pairs.
    """
    fraction = max(fraction, min(least / max(len(pairs), 1), 0.1))
    return holdout(pairs, [f"{source}\0{target}" for source, target in zip(pairs.source, pairs.target, strict=True)], fraction, "pairs")


def concatenate(parts: Sequence[Pairs]) -> Pairs:
    """Concatenate data sets of pairs and discard their line numbers."""
    source = [text for pairs in parts for text in pairs.source]
    return Pairs(source, [text for pairs in parts for text in pairs.target], ", ".join(pairs.name for pairs in parts))


def fingerprint(*parts: Pairs, tags: Sequence[str] = ()) -> str:
    """Return a hash of sentence pairs and language tags, by which a resumed run detects changed data.

    The hash depends on all texts and on their order.
    """
    total = blake2b("\0".join(tags).encode(), digest_size=16)
    for pairs in parts:
        for texts in pairs.columns:
            for text in texts:
                total.update(text.encode() + b"\n")
            total.update(b"\0")
    return total.hexdigest()


def _load_aligned_files(source: Path, target: Path) -> Pairs:
    sides = read_lines(source), read_lines(target)
    counts = tuple(map(len, sides))
    if counts[0] != counts[1]:
        mismatch = first_misaligned_line(*sides)
        if mismatch > min(counts):
            hint = f"the shorter file seems to be truncated after line {mismatch - 1:,}"
        else:
            hint = f"judging by line lengths, the files stop matching near line {mismatch:,}"
        raise DataError(
            f"{source}, {target}: expected aligned files of equal length, found {counts[0]:,} and {counts[1]:,} lines;"
            f" {hint}; correct the files there"
        )
    return Pairs(*sides, name=f"{source}, {target}")


def first_misaligned_line(source: list[str], target: list[str]) -> int:
    """Estimate the line at which two files of different length stop being aligned.

    The longer file is assumed to have one block of surplus lines. If the block starts at line k, the lines before k are aligned with the
    lines of the same number, and the lines from k on are aligned after skipping the block. The estimate is the k that minimizes the sum of
    |log length ratio - median log length ratio| over the aligned lines.

    Args:
        source: all source lines.
        target: all target lines, of which there are more or fewer than source lines.

    Returns:
        The line number, starting at 1. If the shorter file is aligned up to its end, one more than its number of lines.
    """
    a, b = (np.log1p(np.array([len(line.strip()) for line in side])) for side in (source, target))
    n, surplus = min(len(a), len(b)), len(a) - len(b)
    straight, skipped = a[:n] - b[:n], a[max(surplus, 0) :] - b[max(-surplus, 0) :]
    usual = np.median(np.concatenate([straight, skipped]))
    before = np.concatenate([[0.0], np.cumsum(np.abs(straight - usual))])
    after = np.concatenate([np.cumsum(np.abs(skipped - usual)[::-1])[::-1], [0.0]])
    total = before + after
    return int(np.flatnonzero(total <= total.min() + 1e-9)[-1]) + 1
