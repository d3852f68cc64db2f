"""From texts to their classes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

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
    """A text's class.

    Attributes:
        label: the likeliest class.
        p: its probability.
        probabilities: of every class, the likeliest first.
        n_left_out: tokens of the text that were not read.
        windows: pieces in which it was read, whose log probabilities were averaged.
    """

    label: str
    p: float
    probabilities: dict[str, float]
    n_left_out: int = 0
    windows: int = 1

    @property
    def longer(self) -> bool:
        """Whether the text was longer than the model reads."""
        return self.n_left_out > 0 or self.windows > 1

    def __str__(self) -> str:
        """Return the class and its probability."""
        return f"{self.label} ({self.p:.1%})"


def ranked(classes: Sequence[str], log_p: Float[Tensor, "classes"]) -> Classified:
    """Lay out the probabilities of the classes."""
    probabilities = dict(sorted(zip(classes, log_p.exp().tolist(), strict=True), key=lambda entry: -entry[1]))
    label = next(iter(probabilities))
    return Classified(label, probabilities[label], probabilities)


class Classifier(EncoderPredictor[TextClassifierTransformer]):
    """Names the classes of texts."""

    @property
    def classes_(self) -> NDArray[np.str_]:
        """The classes, in the order of the columns of ``predict_proba``."""
        return np.array(self.model.config.classes)

    def predict_proba(self, texts: Sequence[str], too_long: TooLong = "truncate", tell: Tell = unheard) -> NDArray[np.float64]:
        """Return the probability of each class, (texts, classes); columns as in ``classes_``; arguments and errors as of ``classify``."""
        log_p = self._log_probabilities(self.windows(texts, too_long), tell)
        probabilities: NDArray[np.float64] = torch.stack(log_p).exp().numpy() if log_p else np.empty((0, len(self.classes_)))
        return probabilities

    def classify(self, texts: Sequence[str], too_long: TooLong = "truncate", tell: Tell = unheard) -> Results[Classified]:
        """Name the class of each text.

        Args:
            texts: any number.
            too_long: of a text of more tokens than the model reads, read the beginning, all of it in windows, or refuse it.
            tell: is told how many windows are done.

        Raises:
            ConfigError: ``too_long`` has no such value.
            DataError: a text is too long and is to be refused.
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
    """How well one class is told from the others.

    Attributes:
        n: texts of the class.
        recall: share of them that was found.
        precision: share of the texts found to be of the class that are.
    """

    n: int
    recall: float
    precision: float


class Scores(NamedTuple):
    """How well labelled texts were classified.

    Attributes:
        accuracy: texts whose class was found, in percent.
        n: all texts.
        classes: each class that occurs or was found.
        n_longer: texts longer than the model reads: those cut or read in windows.
        n_left_out: tokens of all texts that were not read.
    """

    accuracy: float
    n: int
    classes: list[tuple[str, OfClass]]
    n_longer: int = 0
    n_left_out: int = 0


def scored(found: Sequence[Classified], known: Sequence[str], where: Samples, classes: Sequence[str]) -> Scores:
    """Compare the classes found with those known.

    Args:
        found: by sample.
        known: the samples' classes.
        where: the samples.
        classes: the model's.

    Raises:
        DataError: a sample is of a class that the model does not have.
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
