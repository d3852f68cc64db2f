"""The language modeling task, which predicts each token of a text from the previous tokens."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

import torch

from transom.data.batch import LanguageBatch
from transom.data.text.documents import Documents, load_text
from transom.data.text.input_profile import InputProfile
from transom.data.text.windows import WindowLoader, scoring_batches
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.decoding.predictors.generator import Generator
from transom.models.base import LanguageModel, Network
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.language.schema import LanguageRecipe
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask, load_tokenized_text, train_text_tokenizers
from transom.training.objectives.early_exit import add_early_exit_losses
from transom.training.objectives.objective import Objective
from transom.training.objectives.r_drop import choose_text_loss
from transom.training.task_protocol import ScoredPredictions, TaskContext
from transom.training.validation import validation_loss

PROMPT_TOKENS, CONTINUATION_TOKENS = 32, 96
"""Number of tokens of a validation document that are used as prompt, and maximum number of tokens of its continuation."""


class LanguageTask(TextTask[LanguageRecipe, WindowLoader, Documents]):
    """The language modeling task, with tokenized documents."""

    PREDICTOR: ClassVar[type] = Generator

    @classmethod
    def read(cls, recipe: LanguageRecipe, context: TaskContext) -> Self:
        """Read the text, train or load the tokenizer, and build the data report.

        Raises:
            TransomError: the text cannot be read or does not fit the recipe.
        """
        text = load_tokenized_text(recipe, recipe.data, context, recipe.training.blank_noising)
        recipe = text.recipe.with_fields("model", vocab_size=text.tokenizer.vocab_size)
        training, max_seq_len = recipe.training, recipe.model.max_seq_len
        valid, special = text.streams["valid"], text.tokenizer.special_tokens
        valid_batches = [batch for batch, *_ in scoring_batches(valid.rows, max_seq_len, 0, training.batch_tokens, special=special)]
        return cls(
            recipe=recipe,
            tokenizers=Tokenizers(text.tokenizer),
            loader=text.windows,
            valid=text.splits.valid,
            valid_batches=valid_batches,
            report=text.report(valid_batches),
            data_hash=text.fingerprint,
            input_profile=InputProfile.from_texts(text.splits.train.texts, text.splits.valid.texts, any_length=True),
        )

    def objective(self, model: Network) -> Objective:
        """Return the training loss that the recipe chooses, which is cross-entropy or R-Drop, plus early-exit losses."""
        return add_early_exit_losses(choose_text_loss(self.recipe.training), model, self.recipe.training.early_exit_loss)

    def flops(self, batch: LanguageBatch) -> float:
        """Return the FLOPs of the forward and backward pass of a training step on a batch, padding included."""
        flops = count_flops(self.recipe.model, len(batch.sample_ids), 0, batch.decoder_input.tokens.shape[1])
        n_exits = len(self.recipe.training.early_exit_loss.weights(sum(self.recipe.model.stacks)))
        return flops.training + 3 * (n_exits - 1) * flops.parts["unembedding"]

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return the validation loss, the perplexity and the bits per byte of the text."""
        assert isinstance(model, LanguageModel)
        figures = validation_loss(model, self.valid_batches, autocast)
        n_tokens = sum(batch.n_target_tokens for batch in self.valid_batches)
        figures["bits_per_byte"] = figures["loss"] * n_tokens / math.log(2) / self.valid.n_bytes
        return figures

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Sample continuations of a few excerpts of the validation documents, with the seed of the recipe."""
        assert isinstance(model, LanguageModel)
        texts = self.valid.excerpts(self.recipe.training.validate_samples, 8 * PROMPT_TOKENS)
        prompts = [self.tokenizer.decode(row[:PROMPT_TOKENS]) for row in self.tokenizer.encode_batch(texts)]
        generator = Generator(model, self.tokenizer, self.recipe.decoding, decoder_backend=build_decoder_backend(model, precision.dtype))
        answers = generator.generate(prompts, max_new_tokens=CONTINUATION_TOKENS, min_new_tokens=0, stop=())
        samples = [{"prompt": prompt, "continuation": answer} for prompt, answer in zip(prompts, answers, strict=True)]
        return {}, tuple(samples)

    @classmethod
    def predictor(cls, run: LoadedRun) -> Generator:
        """Build a ``Generator`` from a run."""
        assert isinstance(run.model, LanguageModel)
        early_exit_trained = run.recipe is None or run.recipe.training.early_exit_loss.kind != "none"
        return Generator(
            run.model,
            run.tokenizer,
            run.decoding,
            run.precision,
            run.decoder_backend,
            early_exit_trained=early_exit_trained,
            origin=run.origin,
        )

    @classmethod
    def train_tokenizers(cls, recipe: LanguageRecipe, base: Path, notify: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        return train_text_tokenizers(load_text(recipe.data, base).train.texts, recipe, base, notify)
