"""Random choices that are the same on every machine and Python version."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


class Draw:
    """A stream of choices; only ``random()``, whose values Python guarantees for a seed, stands behind it."""

    def __init__(self, seed: int) -> None:
        self._uniform = Random(seed).random

    def chance(self, probability: float) -> bool:
        """Say yes with a probability."""
        return self._uniform() < probability

    def pick(self, items: Sequence[Item]) -> Item:
        """Choose one of some items, each as likely as any other."""
        return items[int(self._uniform() * len(items))]

    def between(self, least: int, most: int) -> int:
        """Choose an integer, both ends included."""
        return least + int(self._uniform() * (most - least + 1))
