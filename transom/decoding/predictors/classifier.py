"""Text classification: class probabilities of texts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from transom.data.labeled.text_pairs import Text
from transom.decoding.inference import ProgressCallback, ignore_progress
from transom.decoding.predictors.encoder_predictor import EncoderPredictor
from transom.decoding.predictors.long_texts import LongTextPolicy, Windows
from transom.decoding.predictors.results import Record, Results
from transom.decoding.search.loop import log_probabilities
from transom.models.encoder import TextClassifierTransformer


@dataclass(frozen=True)
class ClassPrediction(Record):
    """Predicted class of a text.

    Attributes:
        label: the most probable class.
        p: probability of ``label``.
        probabilities: probability of every class, in decreasing order.
        n_dropped_tokens: number of tokens cut off at the end of the text.
        windows: number of windows in which the text was read; log-probabilities are averaged over the windows.
    """

    label: str
    p: float
    probabilities: dict[str, float]
    n_dropped_tokens: int = 0
    windows: int = 1

    @property
    def is_too_long(self) -> bool:
        """Whether the text was longer than the context window."""
        return self.n_dropped_tokens > 0 or self.windows > 1

    def __str__(self) -> str:
        return f"{self.label} ({self.p:.1%})"


def rank_classes(classes: Sequence[str], log_p: Float[Tensor, "classes"]) -> ClassPrediction:
    """Return the prediction for log-probabilities in the order of ``classes``."""
    probabilities = dict(sorted(zip(classes, log_p.exp().tolist(), strict=True), key=lambda entry: -entry[1]))
    label = next(iter(probabilities))
    return ClassPrediction(label, probabilities[label], probabilities)


class Classifier(EncoderPredictor[TextClassifierTransformer]):
    """Predicts the classes of texts."""

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in the order of the columns of ``predict_proba``."""
        return np.array(self.model.config.classes)

    def predict_proba(
        self, texts: Sequence[Text], too_long: LongTextPolicy = "truncate", notify: ProgressCallback = ignore_progress
    ) -> NDArray[np.float64]:
        """Return class probabilities, (texts, classes), in the order of ``classes_``; arguments and errors as for ``classify``."""
        log_p = self._log_probabilities(self.split_windows(texts, too_long), notify)
        probabilities: NDArray[np.float64] = torch.stack(log_p).exp().numpy() if log_p else np.empty((0, len(self.classes_)))
        return probabilities

    def classify(
        self, texts: Sequence[Text], too_long: LongTextPolicy = "truncate", notify: ProgressCallback = ignore_progress
    ) -> Results[ClassPrediction]:
        """Predict the class of each text.

        Args:
            texts: any number of texts, or of pairs ``(first, second)`` of texts that the model reads together.
            too_long: treatment of texts longer than the context window: "truncate" reads the first tokens, "window" averages over
                consecutive windows, "refuse" raises an error. Pairs are truncated, the longer text first, or refused.
            notify: progress callback, called with the number of windows done and the total.

        Raises:
            ConfigError: ``too_long`` is invalid, or "window" for a pair.
            DataError: a text is too long and ``too_long`` is "refuse".
        """
        read, classes = self.split_windows(texts, too_long), self.model.config.classes
        return Results(
            replace(rank_classes(classes, log_p), n_dropped_tokens=n_dropped, windows=count)
            for log_p, n_dropped, count in zip(self._log_probabilities(read, notify), read.n_dropped_tokens, read.counts, strict=True)
        )

    def _log_probabilities(self, read: Windows, notify: ProgressCallback) -> list[Float[Tensor, "classes"]]:
        """Return log-probabilities of the classes per text: the mean over the windows of the text, normalized."""
        result = torch.empty(len(read.rows), len(self.model.config.classes), dtype=torch.float64)
        of_texts = self.run_batched(read.rows, result, lambda model, batch: log_probabilities(model(batch)), notify).split(read.counts)
        return [log_probabilities(log_p.mean(0)) for log_p in of_texts]
