"""What all answers of encoders share: texts are cut into windows, batched by length and read once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from transom.config.decoding import Reading
from transom.data.batch import LabelledBatch
from transom.data.labeled.labelled import label_batch, text_batches
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.inference import Tell, evaluating, refuse_one, unheard
from transom.decoding.predictors.long_texts import TooLong, Windows, windows_of
from transom.decoding.predictors.results import described
from transom.models.encoder import EncoderTransformer
from transom.planning.precision import Precision

Encoder = TypeVar("Encoder", bound=EncoderTransformer)


@dataclass(frozen=True, repr=False)
class EncoderPredictor(Generic[Encoder]):
    """Answers about texts with an encoder.

    Attributes:
        model: an encoder, ready to answer.
        tokenizer: of its texts.
        reading: the recipe's.
        precision: how the type of its matrix products was chosen; None where it was not.
        reader: what reads in the model's place, faster; None for the model itself.
        origin: folder that it was loaded from; None where it was not.
    """

    model: Encoder
    tokenizer: Tokenizer
    reading: Reading = field(default_factory=Reading)
    precision: Precision | None = None
    reader: Encoder | None = None
    origin: str | None = None

    def __repr__(self) -> str:
        """Return classes, size, precision and origin on one line."""
        n_parameters = sum(each.numel() for each in self.model.parameters())
        precision = None if self.precision is None else self.precision.name
        return described(
            type(self).__name__, classes_in_short(getattr(self.model.config, "classes", ())), n_parameters, precision, self.origin
        )

    def embed(
        self, texts: Sequence[str], normalise: bool = True, too_long: TooLong = "truncate", tell: Tell = unheard
    ) -> NDArray[np.float32]:
        """Embed texts: the mean of the encoder's last vectors, (texts, d_model); arguments and errors as of ``Embedder.embedded``."""
        from transom.decoding.predictors.embedder import Embedder

        embedder = Embedder(self.model, self.tokenizer, self.reading, self.precision, self.reader)
        vectors: NDArray[np.float32] = embedder.embedded(texts, normalise, too_long, tell).vectors.numpy()
        return vectors

    def windows(self, texts: Sequence[str], too_long: TooLong) -> Windows:
        """Encode texts and cut those that are longer than the model reads.

        Raises:
            ConfigError: ``too_long`` has no such value.
            DataError: a text is too long and is to be refused, or ``texts`` is one text.
        """
        refuse_one(texts, "text")
        return windows_of(self.tokenizer.encode_batch(list(texts)), self.model.config.max_seq_len - 1, too_long)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special symbols."""
        return self.tokenizer.encode(text)

    def text_batch(self, tokens: Sequence[int]) -> tuple[LabelledBatch, list[str]]:
        """Make a batch of a text's tokens; see ``inspection.given``."""
        return label_batch([tokens], [0], [0]), []

    @torch.inference_mode()
    def read(
        self,
        rows: Sequence[Sequence[int]],
        result: Float[Tensor, "windows width"],
        answer: Callable[[Encoder, LabelledBatch], Tensor],
        tell: Tell,
    ) -> Float[Tensor, "windows width"]:
        """Read each window once, in batches of like length.

        Args:
            rows: tokens of each window, without special symbols.
            result: is filled with what is answered to each, and returned.
            answer: gives it, from what reads and a batch.
            tell: is told how many windows are done.
        """
        n_done = 0
        with evaluating(self.model):
            for batch in text_batches(rows, [0] * len(rows), self.model.config.max_seq_len, self.reading.batch_tokens):
                result[list(batch.samples)] = answer(self.reader or self.model, batch.to(self.model.device)).to(result)
                n_done += len(batch.samples)
                tell(n_done, len(rows))
        return result


def classes_in_short(classes: Sequence[str], most: int = 5) -> list[str]:
    """Name the number of classes and the first of them, for ``repr``; nothing where there are none.

    >>> classes_in_short(["cat", "dog"]), classes_in_short("abcdef")
    (['2 classes (cat, dog)'], ['6 classes (a, b, c, d, e, ...)'])
    """
    rest = ["..."] if len(classes) > most else []
    return [f"{len(classes)} classes ({', '.join([*classes[:most], *rest])})"] if classes else []
