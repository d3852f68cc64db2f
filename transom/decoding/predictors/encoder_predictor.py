"""What all answers of encoders share: texts are cut into windows, batched by length and read once."""

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
    """Answers about texts with an encoder.

    Attributes:
        model: an encoder, ready to answer.
        tokenizer: of its texts.
        reading: the recipe's.
        precision: how the type of its matrix products was chosen; None where it was not.
        reader: what reads in the model's place, faster; None for the model itself.
    """

    model: Encoder
    tokenizer: Tokenizer
    reading: Reading = field(default_factory=Reading)
    precision: Precision | None = None
    reader: Encoder | None = None

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
