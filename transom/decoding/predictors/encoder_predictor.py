"""Base class of encoder predictors: splits texts into windows and runs the encoder on batches of similar length."""

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
    """Base class of predictors that use an encoder.

    Attributes:
        model: an encoder, prepared for inference.
        tokenizer: the tokenizer of the texts.
        reading: inference settings of the recipe.
        precision: dtype of the matrix products with the reason for the choice; None if none was chosen.
        reader: a faster implementation of the same encoder; None runs the model itself.
        origin: folder it was loaded from; None if it was not loaded.
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
        """Tokenize texts and split those longer than the context window.

        Raises:
            ConfigError: ``too_long`` is invalid.
            DataError: a text is too long and ``too_long`` is "refuse", or ``texts`` is a single text.
        """
        refuse_one(texts, "text")
        return windows_of(self.tokenizer.encode_batch(list(texts)), self.model.config.max_seq_len - 1, too_long)

    def encode(self, text: str) -> list[int]:
        """Return the token IDs of a text, without special tokens."""
        return self.tokenizer.encode(text)

    def text_batch(self, tokens: Sequence[int]) -> tuple[LabelledBatch, list[str]]:
        """Build a batch of one text from its token IDs, for ``inspection.given``."""
        return label_batch([tokens], [0], [0]), []

    @torch.inference_mode()
    def read(
        self,
        rows: Sequence[Sequence[int]],
        result: Float[Tensor, "windows width"],
        answer: Callable[[Encoder, LabelledBatch], Tensor],
        tell: Tell,
    ) -> Float[Tensor, "windows width"]:
        """Run the encoder once on each window, in batches of similar length.

        Args:
            rows: token IDs of each window, without special tokens.
            result: output buffer, filled in place and returned.
            answer: computes the outputs of a batch from (encoder, batch).
            tell: progress callback, called with the number of windows done.
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
