"""From texts to vectors."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.data.batch import LabelledBatch
from transom.decoding.inference import Tell, unheard
from transom.decoding.predictors.encoder_predictor import EncoderPredictor
from transom.decoding.predictors.long_texts import TooLong
from transom.models.encoder import EncoderTransformer, mean_pooled


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


class Embedder(EncoderPredictor[EncoderTransformer]):
    """Gives texts vectors."""

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
        read, d_model = self.windows(texts, too_long), self.model.config.d_model
        sizes = torch.tensor([len(row) + 1.0 for row in read.rows])[:, None]  # the start symbol's vector is one of the mean
        every = self.read(read.rows, torch.empty(len(read.rows), d_model), _mean, tell)
        of_texts = zip(every.split(read.counts), sizes.split(read.counts), strict=True)
        found = [(means * (n_tokens / n_tokens.sum())).sum(0) for means, n_tokens in of_texts]
        vectors = torch.stack(found) if found else torch.empty(0, d_model)
        return Embedded(F.normalize(vectors, dim=-1) if normalise else vectors, read.n_left_out, read.counts)


def _mean(model: EncoderTransformer, batch: LabelledBatch) -> Float[Tensor, "windows d_model"]:
    return mean_pooled(model.encode(batch.source), batch.source)
