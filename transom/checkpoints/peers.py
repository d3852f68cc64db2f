"""The ranks that write and read a checkpoint together, as checkpoints see them."""

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class Peers(Protocol):
    """The ranks of a run, which call the same functions in the same order.

    Attributes:
        rank: rank of this process, from 0.
        size: number of ranks.
    """

    rank: int
    size: int

    def on_all(self, function: Callable[[], T]) -> list[T]:
        """Call a function on every rank and return the results, as JSON values, in rank order; an error of one is raised on every rank."""


class Alone:
    """A process without peers."""

    rank, size = 0, 1

    def on_all(self, function: Callable[[], T]) -> list[T]:
        """Call the function and return its result."""
        return [function()]


ALONE: Peers = Alone()
"""The only rank of a run with one process."""
