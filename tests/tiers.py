"""Division of parametrized tests between the tiers: `make test` runs the first, `make ci` also the long one, `make soak` the rest."""

from collections.abc import Collection, Iterable

import pytest


def every(step: int, values: Iterable[object], long: int = 1) -> list[object]:
    """Return the values of a parametrization, of which only each ``step``-th is in the first tier.

    Of the others each ``long``-th is marked as long, and the rest as soak.

    >>> [getattr(value, "values", (value,))[0] for value in every(2, "abcde")]
    ['a', 'b', 'c', 'd', 'e']
    """
    values = list(values)
    others = [number for number in range(len(values)) if number % step]
    kept = {*others[::long]}
    return [_marked(value, None if number % step == 0 else number in kept) for number, value in enumerate(values)]


def tiers(values: Iterable[object], long: Collection[object]) -> list[object]:
    """Return the values of a parametrization, of which those in ``long`` are marked as long, and the others as soak."""
    return [_marked(value, value in long) for value in values]


def _marked(value: object, long: bool | None) -> object:
    return value if long is None else pytest.param(value, marks=pytest.mark.long if long else pytest.mark.soak)
