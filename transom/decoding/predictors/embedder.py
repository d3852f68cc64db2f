"""Text embeddings by mean pooling."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transom.data.batch import Batch, ContrastiveBatch, LabeledTextBatch
from transom.data.labeled.labeled_texts import labeled_text_batch
from transom.decoding.inference import ProgressCallback, ignore_progress
from transom.decoding.predictors.encoder_predictor import EncoderPredictor
from transom.decoding.predictors.long_texts import LongTextPolicy
from transom.files.message import phrase
from transom.models.encoder import EncoderOnlyTransformer, mean_pool


class Embeddings(NamedTuple):
    """Embeddings of texts.

    Attributes:
        vectors: one embedding per text.
        n_dropped_tokens: number of tokens cut off at the end of each text.
        windows: number of windows in which each text was read.
    """

    vectors: Float[Tensor, "texts d_model"]
    n_dropped_tokens: list[int]
    windows: list[int]

    @property
    def n_too_long(self) -> int:
        """Number of texts longer than the context window."""
        return sum(n_dropped > 0 or count > 1 for n_dropped, count in zip(self.n_dropped_tokens, self.windows, strict=True))


class Embedder(EncoderPredictor[EncoderOnlyTransformer]):
    """Embeds texts as vectors."""

    def text_batch(self, tokens: Sequence[int]) -> tuple[Batch, list[str]]:
        """Return a batch of a text paired with itself, given by its token IDs, and a note; see ``inspection.example_batch``."""
        source = labeled_text_batch([tokens], [0], [0], self.tokenizer.special_tokens).source
        return ContrastiveBatch(source, source, (0,)), [phrase("explain.notes.paired", "the text is paired with itself")]

    def embed_with_details(
        self,
        texts: Sequence[str],
        normalize: bool = True,
        too_long: LongTextPolicy = "truncate",
        notify: ProgressCallback = ignore_progress,
    ) -> Embeddings:
        """Embed each text: mean pooling over the last hidden states of its tokens (Reimers & Gurevych 2019, section 3).

        Args:
            texts: any number of texts.
            normalize: scale every embedding to unit L2 norm, so that dot products are cosine similarities.
            too_long: treatment of texts longer than the context window: "truncate" reads the first tokens, "window" averages over the
                tokens of consecutive windows, "refuse" raises an error.
            notify: progress callback, called with the number of windows done and the total.

        Raises:
            ConfigError: ``too_long`` is invalid.
            DataError: a text is too long and ``too_long`` is "refuse".
        """
        read, d_model = self.split_windows(texts, too_long), self.model.config.d_model
        sizes = torch.tensor([len(row) + 1.0 for row in read.rows])[:, None]  # the start token is part of the mean
        pooled = self.run_batched(read.rows, torch.empty(len(read.rows), d_model), _mean, notify)
        of_texts = zip(pooled.split(read.counts), sizes.split(read.counts), strict=True)
        embeddings = [(means * (n_tokens / n_tokens.sum())).sum(0) for means, n_tokens in of_texts]
        vectors = torch.stack(embeddings) if embeddings else torch.empty(0, d_model)
        return Embeddings(F.normalize(vectors, dim=-1) if normalize else vectors, read.n_dropped_tokens, read.counts)


def _mean(model: EncoderOnlyTransformer, batch: LabeledTextBatch) -> Float[Tensor, "windows d_model"]:
    return mean_pool(model.encode(batch.source), batch.source)
