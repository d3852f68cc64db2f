"""The learning-rate range test: train at a rate that grows per step, and read a learning rate from the curve of the loss."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from transom.errors import ConfigError

SMOOTHING = 0.9
"""Fraction of the previous average that the smoothed loss keeps per step, which averages about ten steps."""

MAX_GROWTH = 4.0
"""The test stops when the smoothed loss exceeds its minimum by this factor."""

MIN_FALL = 1e-3
"""A fall of the smoothed loss by a smaller fraction is none, however little the losses of batches differ."""

MINIMUM_FRACTION = 0.1
"""The suggested learning rate is at most this fraction of the one at which the smoothed loss is lowest."""


class RangePoint(NamedTuple):
    """One step of a range test.

    Attributes:
        learning_rate: learning rate of the step.
        loss: training loss of its batch, before the update.
        smoothed: moving average of the losses so far, with bias correction.
    """

    learning_rate: float
    loss: float
    smoothed: float


@dataclass(frozen=True)
class RangeTest:
    """Result of a range test.

    Attributes:
        points: the steps, those after the loss has diverged left out.
        ended: why the test ended: all rates were tried, the smoothed loss grew by ``MAX_GROWTH``, or a loss was not finite.
        steepest: index of the step at which the smoothed loss falls fastest per factor of the learning rate.
        lowest: index of the step with the lowest smoothed loss.
    """

    points: tuple[RangePoint, ...]
    ended: Literal["all rates", "grown", "not finite"]
    steepest: int
    lowest: int

    @property
    def cap(self) -> float:
        """The largest learning rate that may be suggested: a tenth of the rate of the lowest loss."""
        return MINIMUM_FRACTION * self.points[self.lowest].learning_rate

    @property
    def is_capped(self) -> bool:
        """Whether the cap is below the learning rate of the steepest descent."""
        return self.cap < self.points[self.steepest].learning_rate

    @property
    def suggestion(self) -> float:
        """The suggested learning rate with two digits: that of the steepest descent, or the cap if that is lower."""
        return float(f"{min(self.cap, self.points[self.steepest].learning_rate):.2g}")

    @property
    def setting(self) -> str:
        """The argument of ``--set`` that sets the suggestion."""
        return f"training.learning_rate={self.suggestion:g}"

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-serializable data."""
        return {
            "points": [point._asdict() for point in self.points],
            "ended": self.ended,
            "steepest": self.points[self.steepest].learning_rate,
            "lowest": self.points[self.lowest].learning_rate,
            "cap": self.cap,
            "suggestion": self.suggestion,
            "set": self.setting,
        }


def learning_rates(start: float, end: float, steps: int) -> list[float]:
    """Return the learning rates of a range test, each larger than the one before by the same factor.

    Raises:
        ConfigError: the rates do not grow, or are not numbers above 0.
    """
    for option, rate in (("--from", start), ("--to", end)):
        if not 0 < rate < math.inf:
            raise ConfigError(f"{option}: expected a finite learning rate above 0, found {rate:g}; change it")
    if start >= end:
        raise ConfigError(f"--from: expected a learning rate below --to = {end:g}, found {start:g}; change one of them")
    return [start * (end / start) ** (step / (steps - 1)) for step in range(steps)]


def run_range_test(
    train_step: Callable[[float], float], rates: Sequence[float], notify: Callable[[int, int], None] = lambda done, total: None
) -> RangeTest:
    """Take one training step per learning rate until the loss diverges (Smith 2017, section 3.3).

    The smoothed loss after i steps is (1 - b) sum_j b^(i - j) loss_j / (1 - b^i). Smith increases the rate linearly and reads the ends of a
    range from the accuracy; here the rate grows by a constant factor, and one rate is read from the training loss.

    Args:
        train_step: takes a step at a learning rate, and returns the loss of its batch before the update; NaN if it was not finite.
        rates: learning rates of the steps, in ascending order.
        notify: called with the number of steps done and their total number.

    Raises:
        ConfigError: the loss does not fall at any of the rates.
    """
    points, average, lowest = list[RangePoint](), 0.0, math.inf
    ended: Literal["all rates", "grown", "not finite"] = "all rates"
    for step, rate in enumerate(rates, 1):
        loss = train_step(rate)
        if not math.isfinite(loss):
            ended = "not finite"
            break
        average = SMOOTHING * average + (1 - SMOOTHING) * loss
        smoothed = average / (1 - SMOOTHING**step)
        points.append(RangePoint(rate, loss, smoothed))
        notify(step, len(rates))
        if smoothed > MAX_GROWTH * lowest:
            ended = "grown"
            break
        lowest = min(lowest, smoothed)
    return RangeTest(tuple(points), ended, *_steepest_and_lowest(points, rates))


def _steepest_and_lowest(points: Sequence[RangePoint], rates: Sequence[float]) -> tuple[int, int]:
    """Return the indices of the steepest descent of the smoothed loss and of its minimum.

    The first smoothed losses are means of few batches, whose differences would pass for a descent: none of them is chosen.

    Raises:
        ConfigError: the smoothed loss falls by less than losses of consecutive batches differ.
    """
    first = min(round(1 / (1 - SMOOTHING)), len(rates) // 4)
    half = max(len(rates) // 40, 1)  # of the interval over which a slope is measured
    lowest = min(range(len(points)), key=lambda step: points[step].smoothed, default=0)
    inner = range(max(first, half), min(lowest + 1, len(points) - half))
    if not inner or points[first].smoothed - points[lowest].smoothed <= _noise(points[: first + 1]) + MIN_FALL * points[first].smoothed:
        found = "only losses that are not finite" if not points else "none"
        raise ConfigError(
            f"--from: expected learning rates from {rates[0]:g} to {rates[-1]:g} at which the loss falls, found {found}; change --from and"
            " --to, or raise --steps"
        )
    return min(inner, key=lambda step: points[step + half].smoothed - points[step - half].smoothed), lowest


def _noise(points: Sequence[RangePoint]) -> float:
    """Return the standard deviation of the loss between batches, from the differences of consecutive ones, which a trend hardly changes."""
    differences = [after.loss - before.loss for before, after in pairwise(points)]
    return math.sqrt(sum(each**2 for each in differences) / (2 * max(len(differences), 1)))
