"""From texts to their classes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from transom.config.decoding import Reading
from transom.decoding.inference import Tell, evaluating, refuse_one, unheard
from transom.decoding.loop import log_probabilities
from transom.errors import DataError
from transom.inputs.classes import Samples, numbered
from transom.inputs.labelled import text_batches
from transom.inputs.tokenizer import Tokenizer
from transom.models.encoder import TextClassifierTransformer
from transom.planning.precision import Precision

TooLong = Literal["truncate", "window", "refuse"]


class Classified(NamedTuple):
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


def ranked(classes: Sequence[str], log_p: Float[Tensor, "classes"]) -> Classified:
    """Lay out the probabilities of the classes."""
    probabilities = dict(sorted(zip(classes, log_p.exp().tolist(), strict=True), key=lambda entry: -entry[1]))
    label = next(iter(probabilities))
    return Classified(label, probabilities[label], probabilities)


@dataclass(frozen=True)
class Classifier:
    """Names the classes of texts.

    Attributes:
        model: a text classifier, ready to answer.
        tokenizer: of its texts.
        reading: the recipe's.
        precision: how the type of its matrix products was chosen; None where it was not.
        reader: what reads in the model's place, faster; None for the model itself.
    """

    model: TextClassifierTransformer
    tokenizer: Tokenizer
    reading: Reading = field(default_factory=Reading)
    precision: Precision | None = None
    reader: TextClassifierTransformer | None = None

    def classify(self, texts: Sequence[str], too_long: TooLong = "truncate", tell: Tell = unheard) -> list[Classified]:
        """Name the class of each text.

        Args:
            texts: any number.
            too_long: of a text of more tokens than the model reads, read the beginning, all of it in windows, or refuse it.
            tell: is told how many windows are done.

        Raises:
            DataError: a text is too long and is to be refused.
        """
        refuse_one(texts, "text")
        rows, most = self.tokenizer.encode_batch(list(texts)), self.model.config.max_seq_len - 1
        longer = [number for number, row in enumerate(rows) if len(row) > most]
        if longer and too_long == "refuse":
            raise DataError(f"text {longer[0] + 1}: expected at most {most:,} tokens, found {len(rows[longer[0]]):,}; shorten it")
        starts = [range(0, max(len(row), 1), most) if too_long == "window" else range(1) for row in rows]
        windows = [row[start : start + most] for row, of_text in zip(rows, starts, strict=True) for start in of_text]
        log_p, found, end = self._log_probabilities(windows, tell), list[Classified](), 0
        for row, of_text in zip(rows, starts, strict=True):
            begin, end = end, end + len(of_text)
            left_out = 0 if too_long == "window" else max(len(row) - most, 0)
            answer = ranked(self.model.config.classes, log_probabilities(log_p[begin:end].mean(0)))
            found.append(answer._replace(n_left_out=left_out, windows=len(of_text)))
        return found

    @torch.inference_mode()
    def _log_probabilities(self, rows: Sequence[Sequence[int]], tell: Tell) -> Float[Tensor, "texts classes"]:
        n_done, result = 0, torch.empty(len(rows), len(self.model.config.classes), dtype=torch.float64)
        with evaluating(self.model):
            for batch in text_batches(rows, [0] * len(rows), self.model.config.max_seq_len, self.reading.batch_tokens):
                result[list(batch.samples)] = log_probabilities((self.reader or self.model)(batch.to(self.model.device))).to(result)
                n_done += len(batch.samples)
                tell(n_done, len(rows))
        return result


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
    """

    accuracy: float
    n: int
    classes: list[tuple[str, OfClass]]


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
    return Scores(100 * right.total() / len(known), len(known), of_classes)
