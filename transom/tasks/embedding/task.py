"""Text embedding task: contrastive training that matches each source with its target among all targets of the batch."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

import torch

from transom.config.decoding import Reading
from transom.data.batch import MatchedBatch, matched_batch
from transom.data.pairs.loader import Loader, ordered_batches
from transom.data.pairs.pairs import Pairs, fingerprint
from transom.data.reports.pairs import report_pairs
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.backends.searcher import reader_of
from transom.decoding.predictors.embedder import Embedder
from transom.models.encoder import TextEmbedderTransformer
from transom.models.network import Network
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.embedding.schema import EmbeddingRecipe
from transom.tasks.pairs import read_pairs, train_pair_tokenizers
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask
from transom.training.task import Answers, Reader
from transom.training.validation import validation_loss

SEARCHED = 1000
"""Maximum number of validation pairs among which retrieval accuracy is measured."""


class EmbeddingTask(TextTask[EmbeddingRecipe, Loader, Pairs]):
    """Text embedding: tokenized pairs of matching texts."""

    PREDICTOR: ClassVar[type] = Embedder

    @classmethod
    def read(cls, recipe: EmbeddingRecipe, reader: Reader) -> Self:
        """Read the pairs, train or load the tokenizer, and build the data report.

        Raises:
            TransomError: the data cannot be read or do not fit the recipe.
        """
        pairs = read_pairs(recipe, reader, matched_batch)
        splits, tokenizers, loader = pairs.splits[None], pairs.tokenizers, pairs.loaders[None]
        recipe = recipe.with_fields("model", vocab_size=tokenizers.source.vocab_size)
        batch_tokens, max_seq_len = recipe.training.batch_tokens, recipe.model.max_seq_len
        return cls(
            recipe=recipe,
            tokenizers=tokenizers,
            loader=loader,
            valid=splits.valid,
            valid_batches=ordered_batches(splits.valid, tokenizers, batch_tokens, max_seq_len, make=matched_batch),
            report=report_pairs(splits, tokenizers, loader),
            data=fingerprint(splits.train, splits.valid),
        )

    def flops(self, batch: MatchedBatch) -> float:
        """Return the FLOPs of a training step on a batch: forward and backward pass, padding included."""
        sides = (count_flops(self.recipe.model, len(batch.samples), side.tokens.shape[1], 0) for side in (batch.source, batch.target))
        return sum(side.training for side in sides) + 6 * self.recipe.model.d_model * len(batch.samples) ** 2

    def measure(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return the validation loss."""
        assert isinstance(model, TextEmbedderTransformer)
        figures = validation_loss(model, self.valid_batches, autocast)
        del figures["perplexity"]  # perplexity is not meaningful for a contrastive loss
        return figures

    def answer(self, model: Network, autocast: torch.autocast, precision: Precision) -> Answers:
        """Return the retrieval accuracy, the percentage of sources whose nearest target is their own, and a few examples."""
        assert isinstance(model, TextEmbedderTransformer)
        embedder = Embedder(model, self.tokenizers.source, self.recipe.decoding)
        left, right = self.valid.source[:SEARCHED], self.valid.target[:SEARCHED]
        with autocast:
            cosines = embedder.embedded(left).vectors @ embedder.embedded(right).vectors.T
        nearest = cosines.argmax(1).tolist()
        accuracy = 100 * sum(right[found] == own for found, own in zip(nearest, right, strict=True)) / len(right)
        shown = range(min(self.recipe.training.validate_samples, len(left)))
        return {"accuracy": accuracy}, tuple({"text": left[i], "class": right[i], "found": right[nearest[i]]} for i in shown)

    @classmethod
    def predictor(cls, run: LoadedRun) -> Embedder:
        """Return the predictor of a run."""
        assert isinstance(run.model, TextEmbedderTransformer)
        return Embedder(run.model, run.tokenizer, run.decoding or Reading(), run.precision, reader_of(run.model), run.origin)

    @classmethod
    def train_tokenizers(cls, recipe: EmbeddingRecipe, base: Path, tell: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        return train_pair_tokenizers(recipe, base, tell)
