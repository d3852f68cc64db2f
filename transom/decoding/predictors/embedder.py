"""From texts to vectors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.config.decoding import Reading
from transom.data.labeled.labelled import text_batches
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.decoding.inference import Tell, evaluating, refuse_one, unheard
from transom.decoding.predictors.long_texts import TooLong, windows_of
from transom.models.encoder import EncoderTransformer, mean_pooled
from transom.planning.precision import Precision


class Embedded(NamedTuple):
    """Vectors of texts.

    Attributes:
        vectors: one of each text.
        n_left_out: tokens of each text that were not read.
        windows: pieces in which each text was read.
    """

    vectors: Float[Tensor, "texts d_model"]
    n_left_out: list[int]
    windows: list[int]

    @property
    def n_longer(self) -> int:
        """Texts longer than the model reads."""
        return sum(left_out > 0 or count > 1 for left_out, count in zip(self.n_left_out, self.windows, strict=True))


@dataclass(frozen=True)
class Embedder:
    """Gives texts vectors.

    Attributes:
        model: an encoder of any kind, ready to answer.
        tokenizer: of its texts.
        reading: the recipe's.
        precision: how the type of its matrix products was chosen; None where it was not.
        reader: what reads in the model's place, faster; None for the model itself.
    """

    model: EncoderTransformer
    tokenizer: Tokenizer
    reading: Reading = field(default_factory=Reading)
    precision: Precision | None = None
    reader: EncoderTransformer | None = None

    def embed(
        self, texts: Sequence[str], normalise: bool = True, too_long: TooLong = "truncate", tell: Tell = unheard
    ) -> Float[Tensor, "texts d_model"]:
        """Give each text a vector; see ``embedded``, which also counts what was too long."""
        return self.embedded(texts, normalise, too_long, tell).vectors

    def embedded(self, texts: Sequence[str], normalise: bool = True, too_long: TooLong = "truncate", tell: Tell = unheard) -> Embedded:
        """Give each text a vector: the mean of its tokens' last vectors (Reimers & Gurevych 2019, section 3).

        Args:
            texts: any number.
            normalise: make every vector of length 1, so that products of two are cosines.
            too_long: of a text of more tokens than the model reads, read the beginning, all of it in windows (the mean is then over
                the tokens of all of them), or refuse it.
            tell: is told how many windows are done.

        Raises:
            ConfigError: ``too_long`` has no such value.
            DataError: a text is too long and is to be refused.
        """
        refuse_one(texts, "text")
        read = windows_of(self.tokenizer.encode_batch(list(texts)), self.model.config.max_seq_len - 1, too_long)
        sizes = torch.tensor([len(row) + 1.0 for row in read.rows])[:, None]  # the start symbol's vector is one of the mean
        of_texts = zip(self._means(read.rows, tell).split(read.counts), sizes.split(read.counts), strict=True)
        found = [(means * (n_tokens / n_tokens.sum())).sum(0) for means, n_tokens in of_texts]
        vectors = torch.stack(found) if found else torch.empty(0, self.model.config.d_model)
        return Embedded(F.normalize(vectors, dim=-1) if normalise else vectors, read.n_left_out, read.counts)

    @torch.inference_mode()
    def _means(self, rows: Sequence[Sequence[int]], tell: Tell) -> Float[Tensor, "windows d_model"]:
        model, n_done, result = self.model, 0, torch.empty(len(rows), self.model.config.d_model)
        with evaluating(model):
            for batch in text_batches(rows, [0] * len(rows), model.config.max_seq_len, self.reading.batch_tokens):
                source = batch.source.to(model.device)
                result[list(batch.samples)] = mean_pooled((self.reader or model).encode(source), source).to(result)
                n_done += len(batch.samples)
                tell(n_done, len(rows))
        return result
