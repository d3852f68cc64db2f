"""Masked language modelling as a task: each hidden token of a text is to be named from all the others."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from transom.config.decoding import Reading
from transom.data.batch import MaskedBatch
from transom.data.reports.text import report_text
from transom.data.text.documents import Documents, load_text
from transom.data.text.masking import MaskedLoader, masked
from transom.data.text.windows import Stream, scoring_batches
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.backends.searcher import reader_of
from transom.decoding.predictors.filler import Filler
from transom.errors import ConfigError
from transom.models.encoder import MaskedEncoderTransformer
from transom.models.network import Network
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.encoders import embedder_of
from transom.tasks.masked.schema import MaskedRecipe
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask, read_text, train_text_tokenizers
from transom.training.task import Answers, Reader
from transom.training.validation import validation_accuracy, validation_loss

VALIDATION = (0, 0)
"""Key of the draws that hide validation tokens: the same in every run."""

SHOWN_TOKENS = 24
"""Tokens of a validation document that are shown with a gap in their middle."""


class MaskedTask(TextTask[MaskedRecipe, MaskedLoader, Documents]):
    """Documents, ready to be learnt from."""

    PREDICTOR: ClassVar[type] = Filler
    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"embed": embedder_of}

    @classmethod
    def read(cls, recipe: MaskedRecipe, reader: Reader) -> Self:
        """Read the text, make or load the tokenizer, and examine all of it.

        Raises:
            TransomError: the text cannot be read, or does not fit the recipe.
        """
        if (symbol := recipe.model.mask_token_id) is not None:
            raise ConfigError(
                f"model.mask_token_id: expected none, found {symbol}: no symbol of the tokenizer is a mask, which has a row of its own"
                " behind them; leave it out"
            )
        text = read_text(recipe, recipe.data, reader)
        recipe = recipe.with_fields("model", vocab_size=text.tokenizer.vocab_size)
        training, max_seq_len = recipe.training, recipe.model.max_seq_len
        mask = text.tokenizer.vocab_size
        return cls(
            recipe=recipe,
            tokenizers=Tokenizers(text.tokenizer),
            loader=MaskedLoader(text.windows, training.mask_share, mask, training.seed),
            valid=text.splits.valid,
            valid_batches=_hidden(text.streams["valid"], max_seq_len, training.batch_tokens, training.mask_share, mask),
            report=report_text(text.splits, text.streams, text.tokenizer, text.windows),
            data=text.fingerprint,
        )

    def flops(self, batch: MaskedBatch) -> float:
        """Count the floating-point operations of learning from a batch, forward and backward, padding included."""
        rows, length = batch.source.tokens.shape
        inside = count_flops(self.recipe.model, rows, length, 0)
        return inside.training + count_flops(self.recipe.model, 1, 0, batch.n_target_tokens).training

    def measure(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Measure a model on the masked tokens of the validation text."""
        assert isinstance(model, MaskedEncoderTransformer)
        return validation_loss(model, self.valid_batches, autocast) | validation_accuracy(model, self.valid_batches, autocast)

    def answer(self, model: Network, autocast: torch.autocast, precision: Precision) -> Answers:
        """Give a few validation texts with a gap, and what a model fills in."""
        assert isinstance(model, MaskedEncoderTransformer)
        filler, samples = Filler(model, self.tokenizer, self.recipe.decoding), list[dict[str, str]]()
        for text in self.valid.texts[: self.recipe.training.validate_samples]:
            row = self.tokenizer.encode(text[: 8 * SHOWN_TOKENS])[:SHOWN_TOKENS]
            gap = len(row) // 2
            with autocast:
                (best, *_) = filler.fill_tokens([row[:gap], row[gap + 1 :]], top=1).gaps[0]
            before, behind = (self.tokenizer.decode(part) for part in (row[:gap], row[gap + 1 :]))
            samples.append({"text": f"{before} [MASK]{behind}", "filled": best.text, "was": self.tokenizer.decode(row[gap : gap + 1])})
        return {}, tuple(samples)

    @classmethod
    def predictor(cls, run: LoadedRun) -> Filler:
        """Return what answers with a run's model."""
        assert isinstance(run.model, MaskedEncoderTransformer)
        return Filler(run.model, run.tokenizer, run.decoding or Reading(), run.precision, reader_of(run.model), run.origin)

    @classmethod
    def train_tokenizers(cls, recipe: MaskedRecipe, base: Path, tell: Callable[[str], None]) -> Tokenizers:
        """Learn the symbols of a recipe's training data."""
        return train_text_tokenizers(load_text(recipe.data, base).train.texts, recipe.tokenizer, tell)


def _hidden(stream: Stream, max_seq_len: int, batch_tokens: int, share: float, mask: int) -> list[MaskedBatch]:
    """Batch validation text with tokens hidden that hang on nothing but the text and its place."""
    batches, n = list[MaskedBatch](), 0
    for batch, *_ in scoring_batches(stream.rows, max_seq_len, 0, batch_tokens):
        numbered = replace(batch, samples=tuple(range(n, n := n + len(batch.samples))))
        batches.append(masked(numbered, share, mask, VALIDATION))
    return batches
