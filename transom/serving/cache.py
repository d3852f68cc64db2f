"""A cache of the values that were read last."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Cache(Generic[Value]):
    """Values that are computed once; the ones that were read last stay in memory."""

    def __init__(self, size: int) -> None:
        """Create an empty cache of at most ``size`` values."""
        self._size = size
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        """Return the value of a key, which ``compute`` returns if it is not in memory."""
        if key not in self._values:
            self._values[key] = compute()
        self._values.move_to_end(key)
        while len(self._values) > self._size:
            self._values.popitem(last=False)
        return self._values[key]

    def find(self, key: Hashable) -> Value | None:
        """Return the value of a key, if it is in memory."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]
