"""The range test reads the steepest descent and the minimum from losses that are given by a formula."""

import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from transom.errors import ConfigError
from transom.training.range_test import MAX_GROWTH, SMOOTHING, learning_rates, run_range_test

RATES = learning_rates(1e-6, 1.0, 121)
"""Twenty rates per factor of ten."""


def valley(rate: float, slope: float = 4.0) -> float:
    """Return a loss that falls from 5 to 1 around 1e-3, and rises above 0.1."""
    at = math.log10(rate)
    return 1 + 4 / (1 + math.exp(slope * (at + 3))) + max(at + 1, 0) * 2


def test_rates_grow_by_one_factor() -> None:
    rates = learning_rates(1e-7, 1.0, 8)
    assert rates[0] == 1e-7 and rates[-1] == pytest.approx(1.0)
    assert [after / before for before, after in pairwise(rates)] == pytest.approx([10.0] * 7)


def test_the_smoothed_loss_is_a_moving_average_with_bias_correction() -> None:
    found = run_range_test(valley, RATES)
    losses = [valley(rate) for rate in RATES[:30]]
    weights = [SMOOTHING ** (29 - j) for j in range(30)]
    assert found.points[0].smoothed == pytest.approx(losses[0])
    mean = sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)
    assert found.points[29].smoothed == pytest.approx(mean)
    assert [point.loss for point in found.points[:30]] == losses


def test_the_steepest_descent_is_suggested_where_the_loss_falls_fastest() -> None:
    found = run_range_test(valley, RATES)
    steepest, lowest = (found.points[i].learning_rate for i in (found.steepest, found.lowest))
    assert 1e-3 < steepest < 10**-2.4, "the average of ten steps follows the loss by half a factor of ten at most"
    assert 0.1 < lowest < 0.3
    assert not found.is_capped and found.suggestion == float(f"{steepest:.2g}")
    assert found.setting == f"training.learning_rate={found.suggestion:g}"


def test_a_steep_descent_just_before_the_minimum_is_capped() -> None:
    found = run_range_test(lambda rate: valley(rate * 10**-2, 20.0) + max(math.log10(rate) + 0.8, 0) * 50, RATES)
    assert found.is_capped and found.suggestion == float(f"{found.points[found.lowest].learning_rate / 10:.2g}")
    assert found.suggestion < found.points[found.steepest].learning_rate


def test_the_test_stops_when_the_smoothed_loss_has_grown() -> None:
    found = run_range_test(lambda rate: valley(rate) * (1 if rate < 0.1 else 100), RATES)
    assert found.ended == "grown" and len(found.points) < len(RATES)
    *before, last = (point.smoothed for point in found.points)
    assert last > MAX_GROWTH * min(before) >= before[-1]


def test_the_test_stops_at_a_loss_that_is_not_finite() -> None:
    seen = list[tuple[int, int]]()
    found = run_range_test(lambda rate: valley(rate) if rate < 0.05 else math.nan, RATES, lambda *done: seen.append(done))
    assert found.ended == "not finite" and all(point.learning_rate < 0.05 for point in found.points)
    assert seen == [(i, len(RATES)) for i in range(1, len(found.points) + 1)]
    assert run_range_test(valley, RATES).ended == "all rates"


@pytest.mark.parametrize("loss", [lambda rate: 3.0, lambda rate: 1 + rate, lambda rate: math.inf, lambda rate: 2 + math.sin(1e9 * rate)])
def test_a_loss_that_falls_at_no_rate_is_an_error(loss: Callable[[float], float]) -> None:
    with pytest.raises(ConfigError, match=r"--from: expected learning rates from 1e-06 to 1 at which the loss falls, found"):
        run_range_test(loss, RATES)


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        *((start, end, "--from: expected a learning rate below --to") for start, end in ((1.0, 0.1), (1e-3, 1e-3))),
        *((start, 1.0, "--from: expected a finite learning rate above 0") for start in (0.0, -1.0, math.nan, math.inf)),
        *((1e-7, end, "--to: expected a finite learning rate above 0") for end in (0.0, math.nan, math.inf)),
    ],
)
def test_rates_that_do_not_grow_are_refused(start: float, end: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        learning_rates(start, end, 10)
