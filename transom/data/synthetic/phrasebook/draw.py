"""Random choices that are identical on every machine and Python version."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


class RandomChoices:
    """A seeded stream of random choices, based only on ``random()``, whose values Python guarantees for a seed."""

    def __init__(self, seed: int) -> None:
        self._uniform = Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._uniform() < probability

    def choice(self, items: Sequence[Item]) -> Item:
        """Return one of the items, uniformly at random."""
        return items[int(self._uniform() * len(items))]

    def randint(self, low: int, high: int) -> int:
        """Return a uniform random integer, both ends included."""
        return low + int(self._uniform() * (high - low + 1))
