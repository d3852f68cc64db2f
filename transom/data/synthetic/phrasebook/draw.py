"""Random choices that are the same on every machine and in every version of Python."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


class RandomChoices:
    """Stream of random choices that is determined by a seed.

    All choices are derived from ``random.Random.random``, whose values for a seed are guaranteed not to change between versions of Python.
    """

    def __init__(self, seed: int) -> None:
        self._uniform = Random(seed).random

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self._uniform() < probability

    def choice(self, items: Sequence[Item]) -> Item:
        """Return a random item, each with the same probability."""
        return items[int(self._uniform() * len(items))]

    def randint(self, low: int, high: int) -> int:
        """Return a uniformly distributed random integer from ``low`` to ``high``, both included."""
        return low + int(self._uniform() * (high - low + 1))
