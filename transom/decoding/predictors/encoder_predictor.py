"""Base class of encoder predictors: splits texts into windows and runs the encoder on batches of similar length."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from transom.config.decoding import Reading
from transom.data.batch import LabelledBatch
from transom.data.labeled.labelled import label_batch, text_batches
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.inference import Tell, evaluating, refuse_one
from transom.decoding.predictors.long_texts import TooLong, Windows, windows_of
from transom.models.encoder import EncoderTransformer
from transom.planning.precision import Precision

Encoder = TypeVar("Encoder", bound=EncoderTransformer)


@dataclass(frozen=True)
class EncoderPredictor(Generic[Encoder]):
    """Base class of predictors that use an encoder.

    Attributes:
        model: an encoder, prepared for inference.
        tokenizer: the tokenizer of the texts.
        reading: inference settings of the recipe.
        precision: dtype of the matrix products with the reason for the choice; None if none was chosen.
        reader: a faster implementation of the same encoder; None runs the model itself.
    """

    model: Encoder
    tokenizer: Tokenizer
    reading: Reading = field(default_factory=Reading)
    precision: Precision | None = None
    reader: Encoder | None = None

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
