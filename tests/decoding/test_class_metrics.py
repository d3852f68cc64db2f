"""Metrics of classifiers: against scikit-learn, and against what their definitions give by hand."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support

from transom.data.labeled.class_labels import spread_over_classes
from transom.data.pairs.pairs import Pairs
from transom.decoding.predictors.class_metrics import (
    ClassificationMetrics,
    abstention_table,
    calibration_bins,
    evaluate_predictions,
    evaluate_probabilities,
    expected_calibration_error,
)
from transom.decoding.predictors.classifier import ClassPrediction
from transom.errors import DataError

CLASSES = ("a", "b|c", "never", "Ünü")


def evaluate(labels: list[int], logits: np.ndarray, classes: tuple[str, ...] = CLASSES) -> ClassificationMetrics:
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    texts = [f"text {i}" for i in range(len(labels))]
    return evaluate_probabilities(p, labels, Pairs(texts, [classes[i] for i in labels], "here"), classes, texts)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_the_same_as_scikit_learn(n: int, n_classes: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    classes = tuple(f"class {k}" for k in range(n_classes))
    labels, logits = draw.integers(n_classes, size=n), 3 * draw.standard_normal((n, n_classes))
    ours, found = evaluate(labels.tolist(), logits, classes), logits.argmax(1)
    assert ours.accuracy == pytest.approx(100 * accuracy_score(labels, found))
    assert list(ours.right) == (labels == found).tolist()
    occurring = sorted({*labels.tolist(), *found.tolist()})
    assert [label for label, _ in ours.classes] == [classes[k] for k in occurring]
    theirs = np.array(precision_recall_fscore_support(labels, found, labels=occurring, zero_division=0))
    assert pytest.approx(theirs) == np.array([[each.precision, each.recall, each.f1, each.n] for _, each in ours.classes]).T
    for average in ("macro", "weighted"):
        expected = precision_recall_fscore_support(labels, found, average=average, zero_division=0)[:3]
        assert tuple(getattr(ours, average)) == pytest.approx(expected)
    matrix = confusion_matrix(labels, found, labels=range(n_classes))
    assert ours.confusion == {(classes[i], classes[j]): matrix[i, j] for i in range(n_classes) for j in range(n_classes) if matrix[i, j]}
    confidence = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).max(1)
    accuracy, mean = calibration_curve(labels == found, confidence, n_bins=15)
    assert [each.accuracy for each in ours.calibration] == pytest.approx(accuracy)
    assert [each.confidence for each in ours.calibration] == pytest.approx(mean)
    json.dumps(ours.to_json(), allow_nan=False)


def test_the_calibration_error_by_hand() -> None:
    """Four predictions of two bins: |B| / n |acc - conf| is 3/4 |2/3 - 0.7| + 1/4 |1 - 0.95| (Guo et al. 2017, eq. 3)."""
    bins = calibration_bins(np.array([0.68, 0.7, 0.72, 0.95]), np.array([True, False, True, True]))
    assert [(each.n, each.confidence, each.accuracy) for each in bins] == [(3, pytest.approx(0.7), pytest.approx(2 / 3)), (1, 0.95, 1.0)]
    assert expected_calibration_error(bins) == pytest.approx(3 / 4 * (0.7 - 2 / 3) + 1 / 4 * 0.05)


def test_a_bin_includes_its_upper_end() -> None:
    bins = calibration_bins(np.array([0.5, 0.5 + 1e-9, 1.0, 0.0]), np.array([True] * 4), n_bins=2)
    assert [(each.low, each.high, each.n) for each in bins] == [(0.0, 0.5, 2), (0.5, 1.0, 2)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_a_classifier_that_is_right_as_often_as_it_says_is_calibrated(n: int, seed: int) -> None:
    """In each bin as many predictions are right as its confidence says: the error is 0, whatever the confidences."""
    p = np.random.default_rng(seed).choice([0.25, 0.5, 0.75], n)
    confidence = np.repeat(p, 4)
    right = np.concatenate([np.arange(4) < 4 * each for each in p])
    assert expected_calibration_error(calibration_bins(confidence, right)) == pytest.approx(0, abs=1e-12)


def test_abstaining_by_hand() -> None:
    table = abstention_table(np.array([0.5, 0.6, 0.8, 0.9]), np.array([False, True, False, True]), [0.0, 0.6, 0.85, 0.95])
    assert [tuple(each) for each in table] == [
        (0.0, 4, 1.0, 0.5),
        (0.6, 3, 0.75, pytest.approx(2 / 3)),
        (0.85, 1, 0.25, 1.0),
        (0.95, 0, 0.0, None),
    ]


def test_the_most_confident_errors_of_different_texts() -> None:
    texts = ["one", "two", "two", "three", "four"]
    probabilities = [0.9, 0.7, 0.8, 0.95, 0.6]
    found = [ClassPrediction("a", p, {"a": p, "Ünü": 1 - p}) for p in probabilities]
    known = Pairs(texts, ["a", "Ünü", "Ünü", "Ünü", "Ünü"], "file.tsv")
    metrics = evaluate_predictions(found, known.target, known, CLASSES, texts, thresholds=(0.65,))
    assert [(each.item, each.where, each.label, each.found) for each in metrics.errors] == [
        ("three", "file.tsv, line 4", "Ünü", "a"),
        ("two", "file.tsv, line 3", "Ünü", "a"),
        ("four", "file.tsv, line 5", "Ünü", "a"),
    ]
    assert [each.p for each in metrics.errors] == [0.95, 0.8, 0.6] and metrics.errors[0].p_label == pytest.approx(0.05)
    assert metrics.confused == [("Ünü", "a", 4)]
    assert 0.65 in [each.threshold for each in metrics.abstention]


def test_an_unknown_class_is_refused() -> None:
    known = Pairs(["text"], ["other"], "here")
    with pytest.raises(DataError, match=r"line 1: expected one of the classes 'a', .* found 'other'"):
        evaluate_predictions([ClassPrediction("a", 1.0, {"a": 1.0})], known.target, known, CLASSES)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyzuvw")), max_size=30), st.integers(0, 12))
def test_samples_are_different_and_of_all_classes(rows: list[tuple[str, str]], n: int) -> None:
    labels, keys = [label for label, _ in rows], [key for _, key in rows]
    chosen = spread_over_classes(labels, keys, n)
    first = {key: labels[i] for i, key in reversed(list(enumerate(keys)))}
    assert len({keys[i] for i in chosen}) == len(chosen) == min(n, len(first)) and chosen == sorted(chosen)
    counts = {label: sum(labels[i] == label for i in chosen) for label in set(first.values())}
    for label, count in counts.items():  # no class has more than another one, unless that has no more samples
        available = sum(each == label for each in first.values())
        assert count == available or count >= max(counts.values()) - 1
