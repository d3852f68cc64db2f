"""Metrics of a classifier on labeled samples: per class, confusions, calibration, abstention, and the most confident errors."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transom.data.batch import Indices
from transom.data.labeled.class_labels import SampleSource, encode_labels
from transom.decoding.predictors.classifier import ClassPrediction

N_BINS = 15
"""Number of bins of the expected calibration error, as in Guo et al. 2017."""

ABSTENTION_THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""Confidences below which a classifier could abstain, whose effects are reported."""

MAX_ERRORS = 20
"""Maximum number of confident errors that are reported."""

Probabilities = NDArray[np.float64]


class Scores(NamedTuple):
    """Precision, recall and F1, averaged over classes, from 0 to 1."""

    precision: float
    recall: float
    f1: float


class ClassMetrics(NamedTuple):
    """Metrics of one class, from 0 to 1; a ratio whose denominator is 0 counts as 0.

    Attributes:
        n: number of samples of the class (support).
        recall: fraction of these samples for which the class is predicted.
        precision: fraction of correct predictions among all predictions of the class.
        f1: harmonic mean of precision and recall.
    """

    n: int
    recall: float
    precision: float
    f1: float


class CalibrationBin(NamedTuple):
    """The predictions whose confidence, the probability of the predicted class, is above ``low`` and at most ``high``.

    Attributes:
        low: lower end of the bin.
        high: upper end of the bin.
        n: number of predictions.
        confidence: mean confidence.
        accuracy: fraction of correct predictions.
    """

    low: float
    high: float
    n: int
    confidence: float
    accuracy: float


class Abstention(NamedTuple):
    """Effect of answering only with a confidence of at least ``threshold``.

    Attributes:
        threshold: the minimum confidence.
        n: number of samples that are answered.
        coverage: fraction of the samples that are answered.
        accuracy: fraction of correct answers; None if no sample is answered.
    """

    threshold: float
    n: int
    coverage: float
    accuracy: float | None


class ConfidentError(NamedTuple):
    """A sample with a wrong prediction.

    Attributes:
        item: the text, or the name of the file.
        where: its place in the data.
        label: its class.
        found: the predicted class.
        p: probability of the predicted class.
        p_label: probability of its class.
    """

    item: str
    where: str
    label: str
    found: str
    p: float
    p_label: float


class ClassificationMetrics(NamedTuple):
    """Metrics of a classifier on labeled samples.

    Attributes:
        accuracy: percentage of samples whose class is predicted correctly.
        n: number of samples.
        classes: metrics of every class that occurs or is predicted.
        macro: unweighted mean over these classes.
        weighted: mean over these classes, weighted by their number of samples.
        confusion: number of samples by class and predicted class, zeros left out.
        calibration_error: the expected calibration error, from 0 to 1; see ``expected_calibration_error``.
        calibration: the bins of the expected calibration error that are not empty, by ascending confidence.
        abstention: effect of abstaining below several confidences, in ascending order.
        errors: wrong predictions of different items, the most confident first.
        n_too_long: number of texts longer than the context window.
        n_dropped_tokens: total number of tokens cut off at the ends of texts.
        right: whether the class of each sample is predicted correctly.
    """

    accuracy: float
    n: int
    classes: list[tuple[str, ClassMetrics]]
    macro: Scores
    weighted: Scores
    confusion: dict[tuple[str, str], int]
    calibration_error: float
    calibration: list[CalibrationBin]
    abstention: list[Abstention]
    errors: list[ConfidentError]
    n_too_long: int = 0
    n_dropped_tokens: int = 0
    right: Sequence[bool] = ()

    @property
    def confused(self) -> list[tuple[str, str, int]]:
        """Pairs of a class and another one predicted in its place, with the number of samples, the most frequent first."""
        pairs = [(label, found, n) for (label, found), n in self.confusion.items() if label != found]
        return sorted(pairs, key=lambda pair: -pair[2])

    def to_json(self) -> dict[str, Any]:
        """Return the metrics as data for JSON."""
        counts = dict[str, dict[str, int]]()
        for (label, found), n in self.confusion.items():
            counts.setdefault(label, {})[found] = n
        return {
            "accuracy": self.accuracy,
            "n": self.n,
            "classes": {label: each._asdict() for label, each in self.classes},
            "macro": self.macro._asdict(),
            "weighted": self.weighted._asdict(),
            "confusion": counts,
            "calibration_error": self.calibration_error,
            "calibration": [each._asdict() for each in self.calibration],
            "abstention": [each._asdict() for each in self.abstention],
            "errors": [each._asdict() for each in self.errors],
        }


def evaluate_predictions(
    predictions: Sequence[ClassPrediction],
    references: Sequence[str],
    where: SampleSource,
    classes: Sequence[str],
    items: Sequence[str] = (),
    thresholds: Sequence[float] = (),
) -> ClassificationMetrics:
    """Compute classification metrics of predictions against reference classes.

    Args:
        predictions: prediction for each sample.
        references: reference class of each sample.
        where: source of the samples, for messages.
        classes: the classes of the model.
        items: text or file name of each sample, for the list of errors; by default the place of the sample.
        thresholds: further confidences below which the classifier could abstain.

    Raises:
        DataError: a reference class is unknown to the model.
    """
    labels = encode_labels(references, classes, where)
    numbers = {label: number for number, label in enumerate(classes)}
    metrics = evaluate_labels(
        labels,
        [numbers[each.label] for each in predictions],
        [each.p for each in predictions],
        [each.probabilities.get(label, 0.0) for each, label in zip(predictions, references, strict=True)],
        where,
        classes,
        items,
        thresholds,
    )
    n_too_long, n_dropped_tokens = sum(each.is_too_long for each in predictions), sum(each.n_dropped_tokens for each in predictions)
    return metrics._replace(n_too_long=n_too_long, n_dropped_tokens=n_dropped_tokens)


def evaluate_probabilities(
    probabilities: Probabilities, labels: Sequence[int], where: SampleSource, classes: Sequence[str], items: Sequence[str] = ()
) -> ClassificationMetrics:
    """Compute classification metrics of class probabilities, (samples, classes); other arguments as for ``evaluate_labels``."""
    found, rows = probabilities.argmax(1), np.arange(len(labels))
    return evaluate_labels(labels, found, probabilities[rows, found], probabilities[rows, list(labels)], where, classes, items)


def evaluate_labels(
    labels: Sequence[int],
    found: Sequence[int] | Indices,
    p: Sequence[float] | Probabilities,
    p_label: Sequence[float] | Probabilities,
    where: SampleSource,
    classes: Sequence[str],
    items: Sequence[str] = (),
    thresholds: Sequence[float] = (),
) -> ClassificationMetrics:
    """Compute classification metrics of predicted classes.

    Args:
        labels: class index of each sample, at least one.
        found: index of the predicted class of each sample.
        p: probability of the predicted class.
        p_label: probability of the sample's class.
        where: source of the samples, for messages.
        classes: the classes of the model.
        items: text or file name of each sample, for the list of errors; by default the place of the sample.
        thresholds: further confidences below which the classifier could abstain.
    """
    known, predicted, confidence, p_known = np.array(labels), np.array(found), np.array(p, float), np.array(p_label, float)
    right, n_classes = known == predicted, len(classes)
    cells, counts = np.unique(known * n_classes + predicted, return_counts=True)
    confusion = {(int(cell) // n_classes, int(cell) % n_classes): int(n) for cell, n in zip(cells, counts, strict=True)}
    of_classes = _class_metrics(confusion, classes)
    macro, weighted = score_averages(of_classes)
    bins = calibration_bins(confidence, right)
    errors = [
        ConfidentError(
            items[i] if items else where.describe_sample(i),
            where.describe_sample(i),
            classes[known[i]],
            classes[predicted[i]],
            float(confidence[i]),
            float(p_known[i]),
        )
        for i in _most_confident_errors(confidence, right, items)
    ]
    return ClassificationMetrics(
        accuracy=100 * float(right.mean()),
        n=len(known),
        classes=of_classes,
        macro=macro,
        weighted=weighted,
        confusion={(classes[row], classes[column]): n for (row, column), n in confusion.items()},
        calibration_error=expected_calibration_error(bins),
        calibration=bins,
        abstention=abstention_table(confidence, right, sorted({*ABSTENTION_THRESHOLDS, *thresholds})),
        errors=errors,
        right=right.tolist(),
    )


def calibration_bins(confidence: Probabilities, right: NDArray[np.bool_], n_bins: int = N_BINS) -> list[CalibrationBin]:
    """Group predictions by confidence into bins of equal width, and return the bins that are not empty.

    Bin m of M holds the confidences in ((m - 1) / M, m / M] (Guo et al. 2017, section 2).
    """
    edges = np.linspace(0, 1, n_bins + 1)
    places = np.searchsorted(edges[1:-1], confidence)
    bins = list[CalibrationBin]()
    for place in np.unique(places).tolist():
        inside = places == place
        mean, accuracy = float(confidence[inside].mean()), float(right[inside].mean())
        bins.append(CalibrationBin(float(edges[place]), float(edges[place + 1]), int(inside.sum()), mean, accuracy))
    return bins


def expected_calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Return the expected calibration error (Guo et al. 2017, eq. 3).

    ECE = sum_m |B_m| / n |acc(B_m) - conf(B_m)|, where B_m are the predictions of bin m, acc their accuracy and conf their mean confidence.
    """
    return sum(each.n * abs(each.accuracy - each.confidence) for each in bins) / sum(each.n for each in bins)


def abstention_table(confidence: Probabilities, right: NDArray[np.bool_], thresholds: Sequence[float]) -> list[Abstention]:
    """Return coverage and accuracy of a classifier that abstains below a confidence, per threshold.

    These are points of the risk-coverage curve (Geifman & El-Yaniv 2017, section 2); the risk is 1 - accuracy.
    """
    table = list[Abstention]()
    for threshold in thresholds:
        answered = confidence >= threshold
        n = int(answered.sum())
        table.append(Abstention(threshold, n, n / len(confidence), float(right[answered].mean()) if n else None))
    return table


def _class_metrics(confusion: Mapping[tuple[int, int], int], classes: Sequence[str]) -> list[tuple[str, ClassMetrics]]:
    n_known, n_found, n_right = (np.zeros(len(classes), int) for _ in range(3))
    for (row, column), n in confusion.items():
        n_known[row] += n
        n_found[column] += n
        n_right[row] += n if row == column else 0
    recall, precision = n_right / np.maximum(n_known, 1), n_right / np.maximum(n_found, 1)
    f1 = 2 * n_right / np.maximum(n_known + n_found, 1)
    return [
        (classes[k], ClassMetrics(int(n_known[k]), float(recall[k]), float(precision[k]), float(f1[k])))
        for k in np.flatnonzero(n_known + n_found).tolist()
    ]


def score_averages(of_classes: Sequence[tuple[str, ClassMetrics]]) -> tuple[Scores, Scores]:
    """Return the mean over the classes, and the mean weighted by their numbers of samples; zeros without samples."""
    rows = np.array([[each.precision, each.recall, each.f1] for _, each in of_classes]).reshape(-1, 3)
    weights = np.array([each.n for _, each in of_classes])
    macro = rows.mean(0) if len(rows) else np.zeros(3)
    return Scores(*macro.tolist()), Scores(*((weights @ rows) / max(int(weights.sum()), 1) if len(rows) else macro).tolist())


def _most_confident_errors(confidence: Probabilities, right: NDArray[np.bool_], items: Sequence[str]) -> list[int]:
    """Return the indices of wrong predictions by descending confidence, each item once."""
    wrong = np.flatnonzero(~right)
    chosen = dict[object, int]()
    for i in wrong[np.argsort(-confidence[wrong], kind="stable")].tolist():
        chosen.setdefault(items[i] if items else i, i)
        if len(chosen) == MAX_ERRORS:
            break
    return list(chosen.values())
