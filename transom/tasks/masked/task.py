"""Masked language modeling task: predict masked tokens from all others."""

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
"""Random key of the masks of the validation text: the same in every run."""

SHOWN_TOKENS = 24
"""Number of tokens of a validation document shown with a mask in the middle."""


class MaskedTask(TextTask[MaskedRecipe, MaskedLoader, Documents]):
    """Masked language modeling: tokenized documents."""

    PREDICTOR: ClassVar[type] = Filler
    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"embed": embedder_of}

    @classmethod
    def read(cls, recipe: MaskedRecipe, reader: Reader) -> Self:
        """Read the text, train or load the tokenizer, and build the data report.

        Raises:
            TransomError: the text cannot be read or does not fit the recipe.
        """
        if (symbol := recipe.model.mask_token_id) is not None:
            raise ConfigError(
                f"model.mask_token_id: expected none, found {symbol}: the mask token is not part of the tokenizer's vocabulary, but"
                " has an embedding row of its own after it; remove the field"
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
        """Return the FLOPs of a training step on a batch: forward and backward pass, padding included."""
        rows, length = batch.source.tokens.shape
        inside = count_flops(self.recipe.model, rows, length, 0)
        return inside.training + count_flops(self.recipe.model, 1, 0, batch.n_target_tokens).training

    def measure(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return validation loss and accuracy over masked tokens."""
        assert isinstance(model, MaskedEncoderTransformer)
        return validation_loss(model, self.valid_batches, autocast) | validation_accuracy(model, self.valid_batches, autocast)

    def answer(self, model: Network, autocast: torch.autocast, precision: Precision) -> Answers:
        """Predict a masked token in a few validation documents."""
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
        """Return the predictor of a run."""
        assert isinstance(run.model, MaskedEncoderTransformer)
        return Filler(run.model, run.tokenizer, run.decoding or Reading(), run.precision, reader_of(run.model), run.origin)

    @classmethod
    def train_tokenizers(cls, recipe: MaskedRecipe, base: Path, tell: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        return train_text_tokenizers(load_text(recipe.data, base).train.texts, recipe.tokenizer, tell)


def _hidden(stream: Stream, max_seq_len: int, batch_tokens: int, share: float, mask: int) -> list[MaskedBatch]:
    """Batch the validation text with masks that depend only on the text and its position."""
    batches, n = list[MaskedBatch](), 0
    for batch, *_ in scoring_batches(stream.rows, max_seq_len, 0, batch_tokens):
        numbered = replace(batch, samples=tuple(range(n, n := n + len(batch.samples))))
        batches.append(masked(numbered, share, mask, VALIDATION))
    return batches
