"""Text classification with any number of labels per text: probabilities, thresholds and metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from transom.data.labeled.class_labels import LABEL_SEPARATOR, LabelSets, SampleSource
from transom.data.labeled.text_pairs import Text
from transom.decoding.inference import ProgressCallback, ignore_progress
from transom.decoding.predictors.class_metrics import (
    MAX_ERRORS,
    CalibrationBin,
    ClassMetrics,
    Probabilities,
    Scores,
    calibration_bins,
    expected_calibration_error,
    score_averages,
)
from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.long_texts import LongTextPolicy, Windows
from transom.decoding.predictors.results import Record, Results

N_THRESHOLDS = 256
"""Thresholds are multiples of 1 / ``N_THRESHOLDS``, which are exact in bfloat16 and float16."""

MIN_POSITIVES = 5
"""Minimum number of validation texts with a label, and without it, to choose a threshold for it; other labels keep 0.5."""


@dataclass(frozen=True)
class LabelsPrediction(Record):
    """Predicted labels of a text.

    Attributes:
        labels: the labels whose probability reaches their threshold, the most probable first; perhaps none.
        probabilities: probability of every label, in decreasing order.
        n_dropped_tokens: number of tokens cut off at the end of the text.
        windows: number of windows in which the text was read; logits are averaged over the windows.
    """

    labels: list[str]
    probabilities: dict[str, float]
    n_dropped_tokens: int = 0
    windows: int = 1

    @property
    def is_too_long(self) -> bool:
        """Whether the text was longer than the context window."""
        return self.n_dropped_tokens > 0 or self.windows > 1

    @property
    def joined(self) -> str:
        """The labels as in the data, in the order of their names and separated by ``|``."""
        return LABEL_SEPARATOR.join(sorted(self.labels))

    def __str__(self) -> str:
        return ", ".join(f"{label} ({self.probabilities[label]:.1%})" for label in self.labels) or "(no label)"


class MultiLabelClassifier(Classifier):
    """Predicts the labels of texts that have any number of labels; ``predict_proba`` returns the probability of each label."""

    @property
    def thresholds(self) -> NDArray[np.float64]:
        """The probability from which each label is predicted, in the order of ``classes_``."""
        thresholds: NDArray[np.float64] = self.model.get_buffer("thresholds").double().cpu().numpy()
        return thresholds

    def classify(  # type: ignore[override]  # the predictions have another type
        self, texts: Sequence[Text], too_long: LongTextPolicy = "truncate", notify: ProgressCallback = ignore_progress
    ) -> Results[LabelsPrediction]:
        """Predict the labels of each text; arguments and errors as for ``Classifier.classify``."""
        read, classes, thresholds = self.split_windows(texts, too_long), self.model.config.classes, self.thresholds.tolist()
        found = Results[LabelsPrediction]()
        for log_p, n_dropped, count in zip(self._log_probabilities(read, notify), read.n_dropped_tokens, read.counts, strict=True):
            ranked = sorted(zip(classes, log_p.exp().tolist(), thresholds, strict=True), key=lambda each: -each[1])
            labels = [label for label, p, threshold in ranked if p >= threshold]
            found.append(LabelsPrediction(labels, {label: p for label, p, _ in ranked}, n_dropped, count))
        return found

    def _log_probabilities(self, read: Windows, notify: ProgressCallback) -> list[Float[Tensor, "classes"]]:
        """Return the log-probability of each label per text, from the mean of the logits over the windows of the text."""
        result = torch.empty(len(read.rows), len(self.model.config.classes), dtype=torch.float64)
        logits = self.run_batched(read.rows, result, lambda model, batch: model(batch), notify).split(read.counts)
        return [F.logsigmoid(of_text.mean(0)) for of_text in logits]


def choose_thresholds(probabilities: Probabilities, labels: LabelSets) -> NDArray[np.float64]:
    """Return the threshold of each label that maximizes its F1 on validation texts (Lipton et al. 2014).

    Of several such thresholds the one closest to 0.5 is chosen. A label that fewer than ``MIN_POSITIVES`` texts have, or lack, keeps 0.5.

    Args:
        probabilities: probability of each label, (texts, labels).
        labels: the labels of the texts as 0 and 1.
    """
    candidates, chosen = np.arange(1, N_THRESHOLDS) / N_THRESHOLDS, np.full(labels.shape[1], 0.5)
    for column in range(labels.shape[1]):
        present, p = labels[:, column] > 0, probabilities[:, column]
        if min(present.sum(), (~present).sum()) < MIN_POSITIVES:
            continue
        n_found = len(p) - np.searchsorted(np.sort(p), candidates)
        n_right = present.sum() - np.searchsorted(np.sort(p[present]), candidates)
        f1 = 2 * n_right / (n_found + present.sum())
        best = candidates[f1 == f1.max()]
        chosen[column] = best[np.abs(best - 0.5).argmin()]
    return chosen


class LabelError(NamedTuple):
    """A label that is predicted for a text without it, or missing for a text with it.

    Attributes:
        item: the text.
        where: its place in the data.
        label: the label.
        expected: whether the text has the label.
        p: predicted probability of the label.
    """

    item: str
    where: str
    label: str
    expected: bool
    p: float


class MultiLabelMetrics(NamedTuple):
    """Metrics of a classifier on texts with any number of labels.

    Attributes:
        subset_accuracy: percentage of texts all of whose labels are predicted, and no others.
        hamming_loss: fraction of wrong decisions among all texts and labels.
        n: number of texts.
        micro: scores over all decisions together.
        macro: unweighted mean over the labels that occur or are predicted.
        weighted: mean over these labels, weighted by their number of texts.
        classes: metrics of these labels.
        thresholds: the probability from which each label is predicted.
        calibration_error: the expected calibration error over all decisions: of probability against the frequency of the label.
        calibration: the bins of the expected calibration error that are not empty; their accuracy is the frequency of the label.
        errors: wrong decisions, those farthest from the right one first, each text once.
        n_too_long: number of texts longer than the context window.
        n_dropped_tokens: total number of tokens cut off at the ends of texts.
        right: whether all labels of each text are predicted, and no others.
    """

    subset_accuracy: float
    hamming_loss: float
    n: int
    micro: Scores
    macro: Scores
    weighted: Scores
    classes: list[tuple[str, ClassMetrics]]
    thresholds: dict[str, float]
    calibration_error: float
    calibration: list[CalibrationBin]
    errors: list[LabelError]
    n_too_long: int = 0
    n_dropped_tokens: int = 0
    right: Sequence[bool] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the metrics as data for JSON."""
        return {
            "subset_accuracy": self.subset_accuracy,
            "hamming_loss": self.hamming_loss,
            "n": self.n,
            "micro": self.micro._asdict(),
            "macro": self.macro._asdict(),
            "weighted": self.weighted._asdict(),
            "classes": {label: {**each._asdict(), "threshold": self.thresholds[label]} for label, each in self.classes},
            "calibration_error": self.calibration_error,
            "calibration": [each._asdict() for each in self.calibration],
            "errors": [each._asdict() for each in self.errors],
        }


def evaluate_label_sets(
    probabilities: Probabilities,
    labels: LabelSets,
    thresholds: NDArray[np.float64],
    where: SampleSource,
    classes: Sequence[str],
    items: Sequence[str],
) -> MultiLabelMetrics:
    """Compute the metrics of label probabilities.

    Args:
        probabilities: probability of each label, (texts, labels).
        labels: the labels of the texts as 0 and 1.
        thresholds: the probability from which each label is predicted.
        where: source of the texts, for messages.
        classes: names of the labels.
        items: the texts.
    """
    known, found = labels > 0, probabilities >= thresholds
    n_known, n_found, n_right = known.sum(0), found.sum(0), (known & found).sum(0)
    recall, precision = n_right / np.maximum(n_known, 1), n_right / np.maximum(n_found, 1)
    f1 = 2 * n_right / np.maximum(n_known + n_found, 1)
    used = np.flatnonzero(n_known + n_found).tolist()
    of_classes = [(classes[k], ClassMetrics(int(n_known[k]), float(recall[k]), float(precision[k]), float(f1[k]))) for k in used]
    total_right, total_known, total_found = int(n_right.sum()), int(n_known.sum()), int(n_found.sum())
    micro = Scores(
        total_right / max(total_found, 1), total_right / max(total_known, 1), 2 * total_right / max(total_known + total_found, 1)
    )
    macro, weighted = score_averages(of_classes)
    bins = calibration_bins(probabilities.ravel(), known.ravel())
    return MultiLabelMetrics(
        subset_accuracy=100 * float((known == found).all(1).mean()),
        hamming_loss=float((known != found).mean()),
        n=len(known),
        micro=micro,
        macro=macro,
        weighted=weighted,
        classes=of_classes,
        thresholds=dict(zip(classes, thresholds.tolist(), strict=True)),
        calibration_error=expected_calibration_error(bins),
        calibration=bins,
        errors=_label_errors(probabilities, known, found, where, classes, items),
        right=(known == found).all(1).tolist(),
    )


def label_set_scores(probabilities: Probabilities, labels: LabelSets, thresholds: float | NDArray[np.float64]) -> dict[str, float]:
    """Return micro and macro F1 and subset accuracy in percent, and the Hamming loss, by their keys as validation metrics."""
    known, found = labels > 0, probabilities >= thresholds
    n_known, n_found, n_right = known.sum(0), found.sum(0), (known & found).sum(0)
    used = n_known + n_found > 0
    f1 = 2 * n_right[used] / (n_known + n_found)[used]
    return {
        "micro_f1": 200 * float(n_right.sum()) / max(float((n_known + n_found).sum()), 1),
        "macro_f1": 100 * float(f1.mean()) if used.any() else 0.0,
        "subset_accuracy": 100 * float((known == found).all(1).mean()),
        "hamming_loss": float((known != found).mean()),
    }


def _label_errors(
    probabilities: Probabilities,
    known: NDArray[np.bool_],
    found: NDArray[np.bool_],
    where: SampleSource,
    classes: Sequence[str],
    items: Sequence[str],
) -> list[LabelError]:
    """Return wrong decisions of different texts by descending difference of the probability from 0 or 1."""
    rows, columns = np.nonzero(known != found)
    distances = np.abs(known[rows, columns] - probabilities[rows, columns])
    chosen = dict[str, LabelError]()
    for i in np.argsort(-distances, kind="stable").tolist():
        row, column = int(rows[i]), int(columns[i])
        p, expected = float(probabilities[row, column]), bool(known[row, column])
        chosen.setdefault(items[row], LabelError(items[row], where.describe_sample(row), classes[column], expected, p))
        if len(chosen) == MAX_ERRORS:
            break
    return list(chosen.values())
