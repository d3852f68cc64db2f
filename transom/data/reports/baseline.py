"""Baselines, which are the validation metrics of a trivial predictor that ignores its input."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transom.data.batch import Batch, Indices
from transom.data.tokenizer.special_tokens import EOS


class BaselineMetric(NamedTuple):
    """A validation metric of a trivial predictor.

    Attributes:
        key: key of the metric in the results of a validation. Lower values of ``loss`` are better, and higher values of all other metrics.
        value: value of the metric on the validation data.
        predictor: description of the predictor that can follow "worse than", such as "always answering the class frequencies".
    """

    key: str
    value: float
    predictor: str


def frequency_baseline(counts: NDArray[Any], labels: Indices, answers: str, most_frequent: str | None = None) -> list[BaselineMetric]:
    """Return the metrics of a predictor that always assigns each label its relative frequency in the training data.

    The loss of this predictor is the cross-entropy ``-mean(log(counts[label] / counts.sum()))``. A label without training samples is
    counted as if it had one.

    Args:
        counts: number of training samples of each label.
        labels: label of each validation sample.
        answers: singular noun for a label, such as "class" or "token".
        most_frequent: name of the most frequent label, for the description of the accuracy. None for tasks without accuracy.
    """
    smoothed = np.maximum(counts, 1)
    loss = float(np.log(smoothed.sum()) - np.log(smoothed[labels]).mean())
    metrics = [BaselineMetric("loss", loss, f"always answering the {answers} frequencies")]
    if most_frequent is not None:
        accuracy = 100 * float((labels == counts.argmax()).mean())
        metrics.append(BaselineMetric("accuracy", accuracy, f"always answering {most_frequent!r}"))
    return metrics


def class_baseline(train: Sequence[int], valid: Sequence[int], classes: Sequence[str]) -> list[BaselineMetric]:
    """Return the metrics of a predictor that knows only the class frequencies; see ``frequency_baseline``.

    Args:
        train: class index of each training sample.
        valid: class index of each validation sample.
        classes: names of the classes by index.
    """
    counts = np.bincount(train, minlength=len(classes))
    return frequency_baseline(counts, np.array(valid), "class", classes[int(counts.argmax())])


def uniform_baseline(group_sizes: Sequence[int], n_candidates: int) -> list[BaselineMetric]:
    """Return the metrics of a contrastive model that assigns the same similarity to all candidates.

    Args:
        group_sizes: number of text pairs in each validation batch. The loss compares the candidates within a batch.
        n_candidates: number of candidates that the accuracy compares.
    """
    sizes = np.array(group_sizes)
    loss = float((sizes * np.log(sizes)).sum() / sizes.sum())
    return [BaselineMetric(key, value, "choosing at random") for key, value in (("loss", loss), ("accuracy", 100 / n_candidates))]


def count_tokens(rows: Sequence[Sequence[int]], vocab_size: int) -> NDArray[Any]:
    """Return the number of occurrences of each token id in texts, with one end-of-sequence token per text.

    Args:
        rows: token ids of each text, without special tokens.
        vocab_size: number of token ids.
    """
    counts = np.bincount(np.concatenate([np.asarray(row, np.int64) for row in rows]), minlength=vocab_size)
    counts[EOS] += len(rows)
    return counts


def validation_labels(batches: Iterable[Batch]) -> Indices:
    """Return the labels of all batches that contribute to the validation loss."""
    return np.concatenate([batch.labels[batch.loss_mask].numpy() for batch in batches])


def worse_than_baseline(metrics: Mapping[str, Any], baseline: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one message for each validation metric that is worse than the metric of a trivial predictor.

    Args:
        metrics: metrics of a validation. Missing metrics and NaN are not compared.
        baseline: metrics of the trivial predictor, in the form in which ``DataReport.to_json`` returns them.
    """
    problems = []
    for each in baseline:
        key, value = each["key"], metrics.get(each["key"])
        if value is not None and (value > each["value"] if key == "loss" else value < each["value"]):
            unit, digits = ("%", 1) if key == "accuracy" else ("", 2)
            problems.append(
                f"validation {key} {value:.{digits}f}{unit} is worse than {each['predictor']}, {each['value']:.{digits}f}{unit}"
            )
    return problems
