"""Text classification: class probabilities of texts, and accuracy on labeled texts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from transom.data.labeled.classes import Samples, numbered
from transom.decoding.inference import Tell, unheard
from transom.decoding.predictors.encoder_predictor import EncoderPredictor
from transom.decoding.predictors.long_texts import TooLong, Windows
from transom.decoding.predictors.results import Record, Results
from transom.decoding.search.loop import log_probabilities
from transom.models.encoder import TextClassifierTransformer


@dataclass(frozen=True)
class Classified(Record):
    """Predicted class of a text.

    Attributes:
        label: the most probable class.
        p: its probability.
        probabilities: probability of every class, in decreasing order.
        n_left_out: number of truncated tokens of the text.
        windows: number of windows the text was read in; their log-probabilities are averaged.
    """

    label: str
    p: float
    probabilities: dict[str, float]
    n_left_out: int = 0
    windows: int = 1

    @property
    def longer(self) -> bool:
        """Whether the text was longer than the context window."""
        return self.n_left_out > 0 or self.windows > 1

    def __str__(self) -> str:
        """Return the class and its probability."""
        return f"{self.label} ({self.p:.1%})"


def ranked(classes: Sequence[str], log_p: Float[Tensor, "classes"]) -> Classified:
    """Sort the classes by decreasing probability."""
    probabilities = dict(sorted(zip(classes, log_p.exp().tolist(), strict=True), key=lambda entry: -entry[1]))
    label = next(iter(probabilities))
    return Classified(label, probabilities[label], probabilities)


class Classifier(EncoderPredictor[TextClassifierTransformer]):
    """Predicts the classes of texts."""

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in the order of the columns of ``predict_proba``."""
        return np.array(self.model.config.classes)

    def predict_proba(self, texts: Sequence[str], too_long: TooLong = "truncate", tell: Tell = unheard) -> NDArray[np.float64]:
        """Return the probability of each class, (texts, classes); columns as in ``classes_``; arguments and errors as of ``classify``."""
        log_p = self._log_probabilities(self.windows(texts, too_long), tell)
        probabilities: NDArray[np.float64] = torch.stack(log_p).exp().numpy() if log_p else np.empty((0, len(self.classes_)))
        return probabilities

    def classify(self, texts: Sequence[str], too_long: TooLong = "truncate", tell: Tell = unheard) -> Results[Classified]:
        """Predict the class of each text.

        Args:
            texts: any number of texts.
            too_long: for a text longer than the context window: "truncate" it, average over all its "window"s, or "refuse" it.
            tell: progress callback, called with the number of windows done.

        Raises:
            ConfigError: ``too_long`` is invalid.
            DataError: a text is too long and ``too_long`` is "refuse".
        """
        read, classes = self.windows(texts, too_long), self.model.config.classes
        return Results(
            replace(ranked(classes, log_p), n_left_out=left_out, windows=count)
            for log_p, left_out, count in zip(self._log_probabilities(read, tell), read.n_left_out, read.counts, strict=True)
        )

    def _log_probabilities(self, read: Windows, tell: Tell) -> list[Float[Tensor, "classes"]]:
        """Return log p of the classes of each text, the mean over its windows, normalized."""
        result = torch.empty(len(read.rows), len(self.model.config.classes), dtype=torch.float64)
        of_texts = self.read(read.rows, result, lambda model, batch: log_probabilities(model(batch)), tell).split(read.counts)
        return [log_probabilities(log_p.mean(0)) for log_p in of_texts]


class OfClass(NamedTuple):
    """Recall and precision of one class.

    Attributes:
        n: number of texts of the class.
        recall: fraction of these texts that are predicted as the class.
        precision: fraction of the texts predicted as the class that belong to it.
    """

    n: int
    recall: float
    precision: float


class Scores(NamedTuple):
    """Classification metrics on labeled texts.

    Attributes:
        accuracy: percentage of texts whose class is predicted correctly.
        n: number of texts.
        classes: recall and precision of every class that occurs or is predicted.
        n_longer: number of texts longer than the context window.
        n_left_out: total number of truncated tokens.
    """

    accuracy: float
    n: int
    classes: list[tuple[str, OfClass]]
    n_longer: int = 0
    n_left_out: int = 0


def scored(found: Sequence[Classified], known: Sequence[str], where: Samples, classes: Sequence[str]) -> Scores:
    """Compute classification metrics of predictions against reference classes.

    Args:
        found: prediction for each sample.
        known: reference class of each sample.
        where: the samples, for error messages.
        classes: the classes of the model.

    Raises:
        DataError: a reference class is unknown to the model.
    """
    numbered(known, classes, where)
    labels = [each.label for each in found]
    right = Counter(label for label, expected in zip(labels, known, strict=True) if label == expected)
    n_known, n_found = Counter(known), Counter(labels)
    of_classes = [
        (label, OfClass(n_known[label], right[label] / max(n_known[label], 1), right[label] / max(n_found[label], 1)))
        for label in classes
        if n_known[label] or n_found[label]
    ]
    n_longer, n_left_out = sum(each.longer for each in found), sum(each.n_left_out for each in found)
    return Scores(100 * right.total() / len(known), len(known), of_classes, n_longer, n_left_out)
