"""Division of parametrized tests between the first tier and the long one."""

from collections.abc import Iterable

import pytest


def every(step: int, values: Iterable[object]) -> list[object]:
    """Return the values of a parametrization, of which only each ``step``-th is in the first tier; the others are marked as long.

    >>> [getattr(value, "values", (value,))[0] for value in every(2, "abcde")]
    ['a', 'b', 'c', 'd', 'e']
    """
    return [value if number % step == 0 else pytest.param(value, marks=pytest.mark.long) for number, value in enumerate(values)]
