"""Successive halving: train many configurations for few steps, and the better half of them for twice as many, until one is left."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from transom.errors import ConfigError

FRACTION = 2
"""Of the configurations of a rung, one in this number is continued in the next, which has this many times the steps."""


class Rung(NamedTuple):
    """One round of successive halving.

    Attributes:
        size: largest number of configurations that are trained.
        steps: number of optimizer steps of each, those of earlier rungs included.
    """

    size: int
    steps: int


class Halving(NamedTuple):
    """Result of successive halving.

    Attributes:
        scores: score of each configuration of each rung, by number; lower is better, and infinity means that it diverged.
        ranking: all configurations, the best first: by the last rung that they reached, and then by their score there.
    """

    scores: tuple[Mapping[int, float], ...]
    ranking: tuple[int, ...]


def plan_rungs(size: int, steps: int) -> tuple[Rung, ...]:
    """Return the rungs of successive halving (Jamieson and Talwalkar 2016; Li et al. 2018, section 2).

    Rung k has floor(size / 2^k) configurations. The last one has one configuration and all steps. The steps of the rungs before are
    multiples of those of the first, so that a validation after as many steps validates at the end of each rung.

    >>> plan_rungs(6, 100)
    (Rung(size=6, steps=25), Rung(size=3, steps=50), Rung(size=1, steps=100))

    Args:
        size: number of configurations.
        steps: number of optimizer steps of a whole run.

    Raises:
        ConfigError: the first rung would have no step.
    """
    n_rungs = int(math.log2(size)) + 1
    if (first := steps // FRACTION ** (n_rungs - 1)) < 1:
        raise ConfigError(
            f"--steps: expected at least {FRACTION ** (n_rungs - 1)} steps for the {n_rungs} rungs of {size} configurations, found {steps};"
            " raise it, or lower --runs"
        )
    lengths = [first * FRACTION**rung for rung in range(n_rungs - 1)] + [steps]
    return tuple(Rung(size // FRACTION**rung, length) for rung, length in enumerate(lengths))


def halve(rungs: Sequence[Rung], evaluate: Callable[[int, Sequence[int]], Mapping[int, float]]) -> Halving:
    """Train configurations rung by rung; the best of each rung are continued in the next. Of equal scores the lower number is continued.

    Configurations that diverged are never continued, even if fewer than planned are left.

    Args:
        rungs: the rungs, from ``plan_rungs``.
        evaluate: trains configurations up to the steps of a rung, and returns their scores; arguments are the index of the rung and the
            numbers of the configurations.
    """
    going, scores, ranking = list(range(rungs[0].size)), list[Mapping[int, float]](), list[int]()
    for index, rung in enumerate(rungs):
        found = evaluate(index, going[: rung.size])
        scores.append(found)
        ordered = sorted(found, key=lambda each: (found[each], each))
        ranking = [*ordered, *(each for each in ranking if each not in found)]
        going = [each for each in ordered if math.isfinite(found[each])]
        if not going:
            break
    return Halving(tuple(scores), tuple(ranking))
