"""Baselines, which are the validation metrics of a trivial predictor that ignores its input."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transom.data.batch import Batch, Indices
from transom.data.labeled.class_labels import LabelSets
from transom.files.message import phrase

AnswerNoun = Literal["class", "token"]
"""Singular noun for a label."""


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


def frequency_baseline(
    counts: NDArray[Any], labels: Indices, answers: AnswerNoun, most_frequent: str | None = None
) -> list[BaselineMetric]:
    """Return the metrics of a predictor that always assigns each label its relative frequency in the training data.

    The loss of this predictor is the cross-entropy ``-mean(log(counts[label] / counts.sum()))``. A label without training samples is
    counted as if it had one.

    Args:
        counts: number of training samples of each label.
        labels: label of each validation sample.
        answers: singular noun for a label, "class" or "token".
        most_frequent: name of the most frequent label, for the description of the accuracy. None for tasks without accuracy.
    """
    smoothed = np.maximum(counts, 1)
    loss = float(np.log(smoothed.sum()) - np.log(smoothed[labels]).mean())
    frequencies = phrase(f"baseline.{answers}_frequencies", f"always answering the {answers} frequencies")
    metrics = [BaselineMetric("loss", loss, frequencies)]
    if most_frequent is not None:
        accuracy = 100 * float((labels == counts.argmax()).mean())
        metrics.append(BaselineMetric("accuracy", accuracy, _always_answering(repr(most_frequent))))
    return metrics


def _always_answering(answer: str) -> str:
    return phrase("baseline.always", "always answering {answer}", answer=answer)


def class_baseline(train: Sequence[int], valid: Sequence[int], classes: Sequence[str]) -> list[BaselineMetric]:
    """Return the metrics of a predictor that knows only the class frequencies; see ``frequency_baseline``.

    Args:
        train: class index of each training sample.
        valid: class index of each validation sample.
        classes: names of the classes by index.
    """
    counts = np.bincount(train, minlength=len(classes))
    return frequency_baseline(counts, np.array(valid), "class", classes[int(counts.argmax())])


def label_baseline(train: LabelSets, valid: LabelSets, classes: Sequence[str]) -> list[BaselineMetric]:
    """Return the metrics of a predictor that knows only the frequency of each label.

    Its loss is the binary cross-entropy with the frequencies as probabilities, summed over the labels of a text. A label that no training
    text or every training text has counts as if one text differed. For F1, the predictor gives every text the most frequent labels, as many
    as maximize micro-averaged F1 on the training texts.
    """
    n, counts = len(train), train.sum(0, dtype=np.int64)
    p = np.clip(counts, 1, n - 1) / n if n > 1 else np.full(len(classes), 0.5)
    loss = -float((valid * np.log(p) + (1 - valid.astype(float)) * np.log1p(-p)).sum(1).mean())
    order = np.argsort(-counts, kind="stable")
    n_labels = np.arange(1, len(classes) + 1)
    f1 = 2 * counts[order].cumsum() / np.maximum(n_labels * n + counts.sum(), 1)
    chosen = order[: int(f1.argmax()) + 1]
    score = 200 * float(valid[:, chosen].sum()) / max(len(chosen) * len(valid) + float(valid.sum()), 1)
    names = ", ".join(repr(classes[i]) for i in chosen[:3].tolist()) + (", ..." if len(chosen) > 3 else "")
    return [
        BaselineMetric("loss", loss, phrase("baseline.label_frequencies", "always answering the label frequencies")),
        BaselineMetric("micro_f1", score, _always_answering(names)),
    ]


def uniform_baseline(group_sizes: Sequence[int], n_candidates: int) -> list[BaselineMetric]:
    """Return the metrics of a contrastive model that assigns the same similarity to all candidates.

    Args:
        group_sizes: number of text pairs in each validation batch. The loss compares the candidates within a batch.
        n_candidates: number of candidates that the accuracy compares.
    """
    sizes = np.array(group_sizes)
    loss = float((sizes * np.log(sizes)).sum() / sizes.sum())
    at_random = phrase("baseline.random", "choosing at random")
    return [BaselineMetric(key, value, at_random) for key, value in (("loss", loss), ("accuracy", 100 / n_candidates))]


def count_tokens(rows: Sequence[Sequence[int]], vocab_size: int, end: Sequence[int]) -> NDArray[Any]:
    """Return the number of occurrences of each token id in texts, with the special tokens of each text.

    Args:
        rows: token ids of each text, without special tokens.
        vocab_size: number of token ids.
        end: special tokens that each text has in addition, such as the end-of-sequence token.
    """
    counts = np.bincount(np.concatenate([np.asarray(row, np.int64) for row in rows]), minlength=vocab_size)
    np.add.at(counts, list(end), len(rows))
    return counts


def validation_labels(batches: Iterable[Batch]) -> Indices:
    """Return the labels of all batches that contribute to the validation loss."""
    return np.concatenate([batch.labels[batch.loss_mask].numpy() for batch in batches])


_METRIC_NAMES = {"loss": "loss", "accuracy": "accuracy", "bleu": "BLEU", "micro_f1": "micro F1"}
"""Names of the metrics of the baselines of this package, which other languages have."""


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
            unit, digits = ("", 2) if key == "loss" else ("%", 1)
            problems.append(
                phrase(
                    "problems.worse_than_baseline",
                    "validation {metric} {value} is worse than {predictor}, {baseline}",
                    metric=phrase(f"metrics.{key}", _METRIC_NAMES[key]) if key in _METRIC_NAMES else key,
                    value=f"{value:.{digits}f}{unit}",
                    predictor=each["predictor"],
                    baseline=f"{each['value']:.{digits}f}{unit}",
                )
            )
    return problems


def describe_baseline(baseline: Iterable[Mapping[str, Any]]) -> str:
    """Return the metrics of a trivial predictor in words, such as ``accuracy 52.70 (always answering 'yes')``, the loss last.

    Args:
        baseline: the metrics, in the form in which ``DataReport.to_json`` returns them.
    """
    ordered = sorted(baseline, key=lambda each: each["key"] == "loss")
    shown = ((each, f"{each['value']:.4f}" if each["key"] == "loss" else f"{each['value']:.2f}") for each in ordered)
    return ", ".join(f"{each['key'].replace('_', ' ')} {value} ({each['predictor']})" for each, value in shown)
