"""Paired bootstrap of ratios against the delta method, and McNemar's test against exact fractions."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest

from transom.training.significance import compare_ratios, exact_mcnemar


def documents(n: int, seed: int, effect: float = 0.0) -> tuple[list[float], list[float], list[float]]:
    """Draw the bits of two models and the bytes of documents of different length and difficulty; b needs ``effect`` more bits per byte."""
    draw = np.random.default_rng(seed)
    sizes = draw.integers(50, 1500, size=n).astype(float)
    difficulty = draw.normal(2.0, 0.4, size=n)
    a, b = (sizes * (difficulty + draw.normal(extra, 0.1, size=n)) for extra in (0.0, effect))
    return a.tolist(), b.tolist(), sizes.tolist()


def standard_error(values: list[float], sizes: list[float]) -> float:
    """Return the standard error of sum x / sum s by the delta method: that of the mean of (x - r s) / mean(s)."""
    x, s = np.array(values), np.array(sizes)
    residuals = (x - x.sum() / s.sum() * s) / s.mean()
    return float(residuals.std() / np.sqrt(len(x)))


def test_intervals_are_those_of_the_delta_method_and_pairing_narrows_the_difference() -> None:
    a, b, sizes = documents(400, 1, effect=0.02)
    found = compare_ratios(a, b, sizes, n_samples=4000)
    assert (found.a, found.b) == (pytest.approx(sum(a) / sum(sizes)), pytest.approx(sum(b) / sum(sizes)))
    assert found.difference == found.b - found.a
    difference = [y - x for x, y in zip(a, b, strict=True)]
    for interval, value, column in (
        (found.a_interval, found.a, a),
        (found.b_interval, found.b, b),
        (found.difference_interval, found.difference, difference),
    ):
        error = standard_error(column, sizes)
        assert interval[0] == pytest.approx(value - 1.96 * error, abs=0.15 * error)
        assert interval[1] == pytest.approx(value + 1.96 * error, abs=0.15 * error)
    assert standard_error(difference, sizes) < standard_error(a, sizes) / 2
    z = found.difference / standard_error(difference, sizes)
    assert 2 < z < 4 and found.p_value == pytest.approx(2 * normal_tail(z), abs=0.01)


def normal_tail(z: float) -> float:
    """Return the probability that a standard normal variable exceeds z, by the trapezoid rule."""
    places = np.linspace(z, z + 10, 20001)
    return float(np.trapezoid(np.exp(-(places**2) / 2), places) / np.sqrt(2 * np.pi))


def test_equal_models_are_equal_and_a_seed_repeats_the_draws() -> None:
    a, b, sizes = documents(50, 2)
    same = compare_ratios(a, a, sizes, n_samples=50)
    assert (same.difference, same.p_value, same.difference_interval) == (0.0, 1.0, (0.0, 0.0))
    assert compare_ratios(a, b, sizes, n_samples=50, seed=1) == compare_ratios(a, b, sizes, n_samples=50, seed=1)
    assert compare_ratios(a, b, sizes, n_samples=50, seed=1) != compare_ratios(a, b, sizes, n_samples=50, seed=2)


def test_p_values_of_equally_good_models_are_uniform() -> None:
    p_values = [compare_ratios(*documents(40, seed), n_samples=200).p_value for seed in range(10, 130)]
    assert 3 <= sum(p <= 0.1 for p in p_values) <= 24 and 0.4 < float(np.mean(p_values)) < 0.6


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (1, 0), (0, 5), (3, 3), (2, 9), (15, 31), (400, 460), (0, 1100)])
def test_mcnemar_is_the_two_sided_binomial_test(only_a: int, only_b: int) -> None:
    n, k = only_a + only_b, min(only_a, only_b)
    exact = min(Fraction(1), 2 * Fraction(sum(comb(n, i) for i in range(k + 1)), 2**n))
    assert exact_mcnemar(only_a, only_b) == pytest.approx(float(exact), rel=1e-9, abs=1e-300)
    assert exact_mcnemar(only_b, only_a) == exact_mcnemar(only_a, only_b)


def test_mcnemar_of_many_samples_is_quick_and_exact_enough() -> None:
    """1,000,000 discordant samples; the normal approximation with continuity correction has the same value to three digits."""
    only_a, only_b = 499_000, 501_000
    z = (only_b - only_a - 1) / (only_a + only_b) ** 0.5
    assert exact_mcnemar(only_a, only_b) == pytest.approx(2 * normal_tail(z), rel=1e-3)
