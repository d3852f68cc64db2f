"""The text embedding task, which trains a model to match each source text with its own target among all targets of the batch."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

import torch

from transom.config.decoding import TextInferenceConfig
from transom.data.batch import ContrastiveBatch, contrastive_batch
from transom.data.pairs.loader import PairLoader, length_sorted_batches
from transom.data.pairs.pairs import Pairs, fingerprint
from transom.data.reports.baseline import uniform_baseline
from transom.data.reports.pairs import report_pairs
from transom.data.text.input_profile import InputProfile
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.predictors.embedder import Embedder
from transom.models.base import Network
from transom.models.encoder import TextEmbedderTransformer
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.embedding.schema import EmbeddingRecipe
from transom.tasks.pairs import load_tokenized_pairs, train_pair_tokenizers
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask, vocabulary_fields
from transom.training.task_protocol import ScoredPredictions, TaskContext
from transom.training.validation import different_samples, validation_loss

MAX_RETRIEVAL_PAIRS = 1000
"""Maximum number of validation pairs among which retrieval accuracy is measured."""


class EmbeddingTask(TextTask[EmbeddingRecipe, PairLoader, Pairs]):
    """The text embedding task, with tokenized pairs of matching texts.

    The contrastive loss (InfoNCE) is the cross-entropy of the similarities that ``TextEmbedderTransformer`` returns as logits.
    """

    PREDICTOR: ClassVar[type] = Embedder

    @classmethod
    def read(cls, recipe: EmbeddingRecipe, context: TaskContext) -> Self:
        """Read the text pairs, train or load the tokenizer, and build the data report.

        Raises:
            TransomError: the data cannot be read or do not fit the recipe.
        """
        pairs = load_tokenized_pairs(recipe, context, contrastive_batch)
        splits, tokenizers, loader = pairs.splits[None], pairs.tokenizers, pairs.loaders[None]
        recipe = pairs.recipe.with_fields("model", **vocabulary_fields(tokenizers.source))
        batch_tokens, max_seq_len = recipe.training.batch_tokens, recipe.model.max_seq_len
        valid_batches = length_sorted_batches(splits.valid, tokenizers, batch_tokens, max_seq_len, collate_fn=contrastive_batch)
        baseline = uniform_baseline([batch.n_target_tokens for batch in valid_batches], min(len(splits.valid), MAX_RETRIEVAL_PAIRS))
        return cls(
            recipe=recipe,
            tokenizers=tokenizers,
            loader=loader,
            valid=splits.valid,
            valid_batches=valid_batches,
            report=report_pairs(splits, tokenizers, loader).with_baseline(baseline),
            data_hash=fingerprint(splits.train, splits.valid),
            input_profile=InputProfile.from_texts(splits.train.source + splits.train.target, splits.valid.source + splits.valid.target),
        )

    def flops(self, batch: ContrastiveBatch) -> float:
        """Return the FLOPs of the forward and backward pass of a training step on a batch, padding included."""
        sides = (count_flops(self.recipe.model, len(batch.sample_ids), side.tokens.shape[1], 0) for side in (batch.source, batch.target))
        return sum(side.training for side in sides) + 6 * self.recipe.model.d_model * len(batch.sample_ids) ** 2

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return the validation loss."""
        assert isinstance(model, TextEmbedderTransformer)
        figures = validation_loss(model, self.valid_batches, autocast)
        del figures["perplexity"]  # perplexity is not meaningful for a contrastive loss
        return figures

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Embed validation pairs, and return the retrieval accuracy and a few examples.

        The retrieval accuracy is the percentage of source texts whose nearest target, by cosine similarity, is their own target.
        """
        assert isinstance(model, TextEmbedderTransformer)
        embedder = Embedder(model, self.tokenizers.source, self.recipe.decoding)
        sources, targets = self.valid.source[:MAX_RETRIEVAL_PAIRS], self.valid.target[:MAX_RETRIEVAL_PAIRS]
        with autocast:
            cosines = embedder.embed_with_details(sources).vectors @ embedder.embed_with_details(targets).vectors.T
        nearest = cosines.argmax(1).tolist()
        accuracy = 100 * sum(targets[found] == own for found, own in zip(nearest, targets, strict=True)) / len(targets)
        shown = different_samples(sources, self.recipe.training.validate_samples)
        return {"accuracy": accuracy}, tuple({"text": sources[i], "class": targets[i], "found": targets[nearest[i]]} for i in shown)

    @classmethod
    def predictor(cls, run: LoadedRun) -> Embedder:
        assert isinstance(run.model, TextEmbedderTransformer)
        return Embedder(run.model, run.tokenizer, run.decoding or TextInferenceConfig(), run.precision, run.encoder_backend, run.origin)

    @classmethod
    def train_tokenizers(cls, recipe: EmbeddingRecipe, base: Path, notify: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        return train_pair_tokenizers(recipe, base, notify)
