"""Significance of the difference of two systems on the same test set: paired bootstrap and McNemar's test."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PairedComparison:
    """Metric of two systems on the same test set, and the significance of the difference.

    Attributes:
        a: metric of the first system.
        b: metric of the second system.
        difference: b - a.
        p_value: probability of a difference at least as large, in either direction, if both systems were equally good.
        a_interval: 95% confidence interval of ``a``.
        b_interval: 95% confidence interval of ``b``.
        difference_interval: 95% confidence interval of ``difference``.
        n_samples: number of resampled test sets.
        seed: random seed of the resampling.
    """

    a: float
    b: float
    difference: float
    p_value: float
    a_interval: tuple[float, float]
    b_interval: tuple[float, float]
    difference_interval: tuple[float, float]
    n_samples: int
    seed: int


def compare_resampled(
    a: float, b: float, resampled_a: NDArray[np.float64], resampled_b: NDArray[np.float64], seed: int
) -> PairedComparison:
    """Compare two systems by their metrics on the test set and on the same resampled test sets (paired bootstrap, Koehn 2004).

    The two-sided p-value is the fraction of samples in which the difference deviates from its mean by at least as much as the observed
    difference deviates from 0, with one added to numerator and denominator.

    Args:
        a: metric of the first system on the whole test set.
        b: metric of the second system.
        resampled_a: metric of the first system on each resampled test set.
        resampled_b: metric of the second system on each resampled test set.
        seed: random seed of the resampling.
    """
    differences, n_samples = resampled_b - resampled_a, len(resampled_a)
    p_value = (int((np.abs(differences - differences.mean()) >= abs(b - a)).sum()) + 1) / (n_samples + 1)
    of_a, of_b, of_difference = (_confidence_interval(values) for values in (resampled_a, resampled_b, differences))
    return PairedComparison(a, b, b - a, p_value, of_a, of_b, of_difference, n_samples, seed)


def compare_ratios(
    a: Sequence[float], b: Sequence[float], sizes: Sequence[float], n_samples: int = 1000, seed: int = 12345
) -> PairedComparison:
    """Compare two systems by a total per size, such as bits per byte, with a paired bootstrap over the units of the test set.

    The metric is sum_i x_i / sum_i s_i. Each resampled test set has as many units, drawn with replacement, the same for both systems.

    Args:
        a: values x_i of the first system, such as the bits of each document.
        b: values of the second system.
        sizes: sizes s_i, such as the bytes of each document.
        n_samples: number of resampled test sets.
        seed: random seed of the resampling.
    """
    columns, draw = np.array([a, b, sizes], np.float64), np.random.default_rng(seed)
    n = columns.shape[1]
    totals = np.array([columns[:, draw.integers(n, size=n)].sum(1) for _ in range(n_samples)])  # (samples, 3)
    whole_a, whole_b, size = columns.sum(1).tolist()
    return compare_resampled(whole_a / size, whole_b / size, totals[:, 0] / totals[:, 2], totals[:, 1] / totals[:, 2], seed)


def exact_mcnemar(n_only_a: int, n_only_b: int) -> float:
    """Return the two-sided p-value of McNemar's exact test of two classifiers (McNemar 1947).

    If both are equally accurate, each of the n samples that exactly one of them classifies correctly is a fair coin toss:
    p = min(1, 2 sum_{i <= k} binom(n, i) / 2^n) with k = min(n_only_a, n_only_b).

    Args:
        n_only_a: number of samples that only the first classifier classifies correctly.
        n_only_b: number of samples that only the second classifier classifies correctly.
    """
    n, k = n_only_a + n_only_b, min(n_only_a, n_only_b)
    term = math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
    total = 0.0
    for i in range(k, -1, -1):
        total += term
        term *= i / (n - i + 1)  # binom(n, i - 1) = binom(n, i) i / (n - i + 1)
        if term < 1e-17 * total:
            break
    return min(1.0, 2 * total)


def _confidence_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the range of ``values`` without the lowest and the highest 2.5%."""
    ordered, cut = np.sort(values), len(values) // 40
    return float(ordered[cut]), float(ordered[-cut - 1])
