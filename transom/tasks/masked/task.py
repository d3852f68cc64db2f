"""The masked language modeling task, which predicts masked tokens of a text from all other tokens."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from transom.config.decoding import TextInferenceConfig
from transom.data.batch import MaskedBatch
from transom.data.text.documents import Documents, load_text
from transom.data.text.input_profile import InputProfile
from transom.data.text.masking import MaskedLoader, mask_tokens
from transom.data.text.windows import TokenStream, scoring_batches
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.predictors.fill_mask import MaskFiller
from transom.errors import ConfigError
from transom.models.base import Network
from transom.models.encoder import MaskedEncoderTransformer
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.embed_command import as_embedder
from transom.tasks.masked.schema import MaskedRecipe
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask, load_tokenized_text, train_text_tokenizers, vocabulary_fields
from transom.training.task_protocol import ScoredPredictions, TaskContext
from transom.training.validation import validation_accuracy, validation_loss

VALIDATION_MASK_KEY = (0, 0)
"""Random key of the masks of the validation text, which are the same in every run."""

EXAMPLE_TOKENS = 24
"""Number of tokens at the beginning of a validation document that are shown, with the middle token masked."""


class MaskedTask(TextTask[MaskedRecipe, MaskedLoader, Documents]):
    """The masked language modeling task, with tokenized documents."""

    PREDICTOR: ClassVar[type] = MaskFiller
    COMMANDS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"embed": as_embedder}

    @classmethod
    def read(cls, recipe: MaskedRecipe, context: TaskContext) -> Self:
        """Read the text, train or load the tokenizer, and build the data report.

        Raises:
            TransomError: the text cannot be read or does not fit the recipe.
        """
        text = load_tokenized_text(recipe, recipe.data, context)
        tokenizer, symbol = text.tokenizer, recipe.model.mask_token_id
        inside = tokenizer.special_tokens.mask_token_id
        if symbol is not None and inside is None:
            raise ConfigError(
                f"model.mask_token_id: expected none, found {symbol}: the mask token is not part of the tokenizer's vocabulary, but"
                " has an embedding row of its own after the rows of the vocabulary; remove the field"
            )
        if symbol not in (None, inside):
            raise ConfigError(f"model.mask_token_id: expected {inside}, the mask token of the tokenizer, found {symbol}; remove the field")
        recipe = text.recipe.with_fields("model", **vocabulary_fields(tokenizer))
        training, max_seq_len = recipe.training, recipe.model.max_seq_len
        valid_batches = _masked_batches(text.streams["valid"], max_seq_len, training.batch_tokens, training.mlm_probability, tokenizer)
        return cls(
            recipe=recipe,
            tokenizers=Tokenizers(text.tokenizer),
            loader=MaskedLoader(text.windows, training.mlm_probability, tokenizer.mask_token_id, training.seed, tokenizer.maskable),
            valid=text.splits.valid,
            valid_batches=valid_batches,
            report=text.report(valid_batches),
            data_hash=text.fingerprint,
            input_profile=InputProfile.from_texts(text.splits.train.texts, text.splits.valid.texts, any_length=True),
        )

    def flops(self, batch: MaskedBatch) -> float:
        """Return the FLOPs of the forward and backward pass of a training step on a batch, padding included."""
        rows, length = batch.source.tokens.shape
        inside = count_flops(self.recipe.model, rows, length, 0)
        return inside.training + count_flops(self.recipe.model, 1, 0, batch.n_target_tokens).training

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return the validation loss, the perplexity and the accuracy of the predicted tokens."""
        assert isinstance(model, MaskedEncoderTransformer)
        return validation_loss(model, self.valid_batches, autocast) | validation_accuracy(model, self.valid_batches, autocast)

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Predict a masked token in a few excerpts of the validation documents."""
        assert isinstance(model, MaskedEncoderTransformer)
        mask_filler, samples = MaskFiller(model, self.tokenizer, self.recipe.decoding), list[dict[str, str]]()
        for text in self.valid.excerpts(self.recipe.training.validate_samples, 8 * EXAMPLE_TOKENS):
            row = self.tokenizer.encode(text)[:EXAMPLE_TOKENS]
            mask_index = len(row) // 2
            with autocast:
                (best, *_) = mask_filler.fill_tokens([row[:mask_index], row[mask_index + 1 :]], top_k=1).masks[0]
            before, masked, after = row[:mask_index], row[mask_index : mask_index + 1], row[mask_index + 1 :]
            mask = " [MASK]" if self.tokenizer.decode_continuation(before, masked).startswith(" ") else "[MASK]"
            text = self.tokenizer.decode(before) + mask + self.tokenizer.decode_continuation(row[: mask_index + 1], after)
            samples.append({"text": text, "filled": best.text, "was": self.tokenizer.decode(masked)})
        return {}, tuple(samples)

    @classmethod
    def predictor(cls, run: LoadedRun) -> MaskFiller:
        assert isinstance(run.model, MaskedEncoderTransformer)
        return MaskFiller(run.model, run.tokenizer, run.decoding or TextInferenceConfig(), run.precision, run.encoder_backend, run.origin)

    @classmethod
    def train_tokenizers(cls, recipe: MaskedRecipe, base: Path, notify: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        return train_text_tokenizers(load_text(recipe.data, base).train.texts, recipe, base, notify)


def _masked_batches(
    stream: TokenStream, max_seq_len: int, batch_tokens: int, mask_probability: float, tokenizer: Tokenizer
) -> list[MaskedBatch]:
    """Batch the windows of the validation text, and mask some of their tokens.

    The masks depend only on the windows and their order. Every run with the same data and settings therefore has the same masks.
    """
    batches, n, mask = list[MaskedBatch](), 0, tokenizer.mask_token_id
    for batch, *_ in scoring_batches(stream.closed_rows, max_seq_len, 0, batch_tokens, special=tokenizer.special_tokens):
        numbered = replace(batch, sample_ids=tuple(range(n, n := n + len(batch.sample_ids))))
        batches.append(mask_tokens(numbered, mask_probability, mask, VALIDATION_MASK_KEY, tokenizer.maskable))
    return batches
