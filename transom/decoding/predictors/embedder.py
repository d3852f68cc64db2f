"""Text embeddings by mean pooling."""

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
    """Embeddings of texts.

    Attributes:
        vectors: one embedding per text.
        n_left_out: number of truncated tokens of each text.
        windows: number of windows each text was read in.
    """

    vectors: Float[Tensor, "texts d_model"]
    n_left_out: list[int]
    windows: list[int]

    @property
    def n_longer(self) -> int:
        """Number of texts longer than the context window."""
        return sum(left_out > 0 or count > 1 for left_out, count in zip(self.n_left_out, self.windows, strict=True))


class Embedder(EncoderPredictor[EncoderTransformer]):
    """Embeds texts."""

    def embedded(self, texts: Sequence[str], normalise: bool = True, too_long: TooLong = "truncate", tell: Tell = unheard) -> Embedded:
        """Embed each text: mean pooling over the last hidden states of its tokens (Reimers & Gurevych 2019, section 3).

        Args:
            texts: any number of texts.
            normalise: scale every embedding to unit L2 norm, so that dot products are cosine similarities.
            too_long: for a text longer than the context window: "truncate" it, average over the tokens of all its "window"s, or
                "refuse" it.
            tell: progress callback, called with the number of windows done.

        Raises:
            ConfigError: ``too_long`` is invalid.
            DataError: a text is too long and ``too_long`` is "refuse".
        """
        read, d_model = self.windows(texts, too_long), self.model.config.d_model
        sizes = torch.tensor([len(row) + 1.0 for row in read.rows])[:, None]  # the start token is part of the mean
        every = self.read(read.rows, torch.empty(len(read.rows), d_model), _mean, tell)
        of_texts = zip(every.split(read.counts), sizes.split(read.counts), strict=True)
        found = [(means * (n_tokens / n_tokens.sum())).sum(0) for means, n_tokens in of_texts]
        vectors = torch.stack(found) if found else torch.empty(0, d_model)
        return Embedded(F.normalize(vectors, dim=-1) if normalise else vectors, read.n_left_out, read.counts)


def _mean(model: EncoderTransformer, batch: LabelledBatch) -> Float[Tensor, "windows d_model"]:
    return mean_pooled(model.encode(batch.source), batch.source)
