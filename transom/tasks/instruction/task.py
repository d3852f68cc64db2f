"""The instruction tuning task, which predicts each token of an answer from the prompt and the previous tokens of the answer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self

import torch

from transom.data.batch import LanguageBatch
from transom.data.labeled.chat import has_history
from transom.data.labeled.instructions import InstructionLoader, Instructions, evaluation_batches, load_instructions
from transom.data.pairs.pairs import Pairs, fingerprint
from transom.data.reports.baseline import count_tokens, frequency_baseline, validation_labels
from transom.data.reports.instructions import report_instructions
from transom.data.text.input_profile import InputProfile
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.decoding.predictors.generator import Generator
from transom.models.base import LanguageModel, Network
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.instruction.schema import InstructionRecipe
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask, train_text_tokenizers
from transom.training.finetune import load_or_train_tokenizer
from transom.training.task_protocol import ScoredPredictions, TaskContext
from transom.training.validation import different_samples, validation_accuracy, validation_loss


class InstructionTask(TextTask[InstructionRecipe, InstructionLoader, Pairs]):
    """The instruction tuning task, with tokenized prompts and answers."""

    PREDICTOR: ClassVar[type] = Generator

    @classmethod
    def read(cls, recipe: InstructionRecipe, context: TaskContext) -> Self:
        """Read the instructions, train or load the tokenizer, and build the data report.

        Raises:
            TransomError: the instructions cannot be read or do not fit the recipe.
        """
        context.notify("reading the instructions")
        splits = load_instructions(recipe.data, context.base)
        recipe = context.fit(recipe, len(splits.train), splits.train.source + splits.train.target)
        tokenizer = load_or_train_tokenizer(splits.train.source + splits.train.target, recipe, context)
        recipe = recipe.with_fields("model", vocab_size=tokenizer.vocab_size)
        training, max_seq_len = recipe.training, recipe.model.max_seq_len
        parts = {"train": splits.train, "valid": splits.valid}
        read = {name: Instructions.encode(part, tokenizer, max_seq_len, recipe.data.too_long) for name, part in parts.items()}
        loader = InstructionLoader(
            splits.train,
            read["train"],
            max_seq_len=max_seq_len,
            batch_tokens=training.batch_tokens,
            seed=training.seed,
            micro_batching=context.micro_batching(training),
        )
        valid_batches = evaluation_batches(read["valid"], max_seq_len, training.batch_tokens)
        counts = count_tokens(read["train"].answers, tokenizer.vocab_size, [tokenizer.special_tokens.end])
        baseline = frequency_baseline(counts, validation_labels(valid_batches), "token")
        return cls(
            recipe=recipe,
            tokenizers=Tokenizers(tokenizer),
            loader=loader,
            valid=splits.valid,
            valid_batches=valid_batches,
            report=report_instructions(splits, read, tokenizer, loader).with_baseline(baseline),
            data_hash=fingerprint(splits.train, splits.valid),
            input_profile=replace(
                InputProfile.from_texts(splits.train.source, splits.valid.source),
                single_turn=not any(has_history(recipe.data.chat_template, prompt) for prompt in splits.train.source),
            ),
        )

    def flops(self, batch: LanguageBatch) -> float:
        """Return the FLOPs of the forward and backward pass of a training step on a batch, with logits of answer tokens only."""
        n_rows, length = batch.decoder_input.tokens.shape
        whole, logits = (count_flops(self.recipe.model, 1, 0, n).parts["unembedding"] for n in (n_rows * length, batch.n_target_tokens))
        return count_flops(self.recipe.model, n_rows, 0, length).training - 3 * (whole - logits)

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return the validation loss, the perplexity and the accuracy of answer tokens."""
        assert isinstance(model, LanguageModel)
        return validation_loss(model, self.valid_batches, autocast) | validation_accuracy(model, self.valid_batches, autocast)

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Generate answers to a few validation prompts."""
        assert isinstance(model, LanguageModel)
        shown = different_samples(self.valid.source, self.recipe.training.validate_samples)
        prompts = [self.valid.source[i] for i in shown]
        decoder_backend = build_decoder_backend(model, precision.dtype)
        generator = Generator(model, self.tokenizer, self.recipe.decoding, decoder_backend=decoder_backend, instruction_tuned=True)
        answers = generator.generate(prompts, min_new_tokens=0)
        rows = zip(shown, prompts, answers, strict=True)
        return {}, tuple({"text": prompt, "class": self.valid.target[i], "found": answer} for i, prompt, answer in rows)

    @classmethod
    def predictor(cls, run: LoadedRun) -> Generator:
        """Build a ``Generator`` from a run."""
        assert isinstance(run.model, LanguageModel)
        return Generator(
            run.model,
            run.tokenizer,
            run.decoding,
            run.precision,
            run.decoder_backend,
            instruction_tuned=True,
            early_exit_trained=False,
            origin=run.origin,
        )

    @classmethod
    def train_tokenizers(cls, recipe: InstructionRecipe, base: Path, notify: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        train = load_instructions(recipe.data, base).train
        return train_text_tokenizers(train.source + train.target, recipe, base, notify)
