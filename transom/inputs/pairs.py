"""Sentence pairs: what a translator learns from."""

from dataclasses import dataclass


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
        return len(self.source)

    def line(self, sample: int) -> int:
        """Give the line number, from 1, of pair ``sample``."""
        return sample + 1 if self.lines is None else self.lines[sample]


@dataclass(frozen=True)
class Splits:
    """The pairs to learn from, to choose by, and to report on where there are some."""

    train: Pairs
    valid: Pairs
    test: Pairs | None = None
