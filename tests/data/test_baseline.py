"""Trivial baselines against closed formulas."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.data.reports.baseline import (
    BaselineMetric,
    class_baseline,
    count_tokens,
    frequency_baseline,
    uniform_baseline,
    worse_than_baseline,
)
from transom.data.tokenizer.special_tokens import EOS

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=40)


@given(LABELS, LABELS)
def test_the_loss_is_the_cross_entropy_to_the_training_frequencies(train: list[int], valid: list[int]) -> None:
    loss, accuracy = class_baseline(train, valid, "abcde")
    counts = {label: max(Counter(train)[label], 1) for label in range(5)}
    expected = -sum(math.log(counts[label] / sum(counts.values())) for label in valid) / len(valid)
    most = min(label for label in range(5) if Counter(train)[label] == max(Counter(train).values()))
    assert loss.value == pytest.approx(expected, rel=1e-12)
    assert accuracy.value == pytest.approx(100 * valid.count(most) / len(valid))
    assert accuracy.predictor == f"always answering {'abcde'[most]!r}"


def test_known_values() -> None:
    (loss,) = frequency_baseline(np.array([2, 2, 2, 2]), np.array([0, 1, 2, 3]), "token")
    assert loss == BaselineMetric("loss", pytest.approx(math.log(4)), "always answering the token frequencies")
    loss, accuracy = uniform_baseline([8, 8, 2], 18)
    assert loss.value == pytest.approx((16 * math.log(8) + 2 * math.log(2)) / 18)
    assert accuracy.value == pytest.approx(100 / 18)
    counts = count_tokens([[5, 5, 6], [6]], 8, [EOS])
    assert counts.tolist() == [2 if token == EOS else {5: 2, 6: 2}.get(token, 0) for token in range(8)]


def test_worse_is_described_for_losses_and_for_scores() -> None:
    baseline = [metric._asdict() for metric in class_baseline([0, 0, 1], [0, 1], ("good", "bad"))]
    assert worse_than_baseline({"loss": 2.456, "accuracy": 31.24}, baseline) == [
        "validation loss 2.46 is worse than always answering the class frequencies, 0.75",
        "validation accuracy 31.2% is worse than always answering 'good', 50.0%",
    ]
    assert worse_than_baseline({"loss": 0.75, "accuracy": 50.0}, baseline) == []
    assert worse_than_baseline({"loss": math.nan}, baseline) == worse_than_baseline({}, baseline) == []
