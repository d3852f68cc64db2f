"""Classification of texts as a task: the class of a whole text is to be named."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch

from transom.checkpoints.run_files import TOKENIZER
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import ClassificationRecipe
from transom.data.batch import LabelledBatch
from transom.data.labeled.classes import classes_of, numbered
from transom.data.labeled.labelled import LabelledLoader, load_labelled, refuse_longer, text_batches
from transom.data.pairs.pairs import Pairs, fingerprint
from transom.data.reports.labelled import LabelledReport, report_labelled
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.predictors.classifier import Classifier
from transom.models.encoder import TextClassifierTransformer
from transom.models.network import Network
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.training.objectives.objective import Objective
from transom.training.objectives.r_drop import text_objective
from transom.training.start import tokenizer_of
from transom.training.tasks.task import Answers, Reader
from transom.training.validation import validation_accuracy, validation_loss


@dataclass(frozen=True)
class ClassificationTask:
    """Texts with their classes, ready to be learnt from.

    Attributes:
        recipe: as resolved, vocabulary size and classes filled in.
        tokenizer: of the texts.
        loader: training batches.
        valid: validation texts.
        valid_batches: the same as batches.
        report: what is known of the texts.
        data: hash of all training and validation texts and their classes, in their order.
    """

    recipe: ClassificationRecipe
    tokenizer: Tokenizer
    loader: LabelledLoader
    valid: Pairs
    valid_batches: Sequence[LabelledBatch]
    report: LabelledReport
    data: str

    @classmethod
    def read(cls, recipe: ClassificationRecipe, reader: Reader) -> Self:
        """Read the texts, make or load the tokenizer, and examine all of it.

        Raises:
            TransomError: the texts cannot be read, or do not fit the recipe.
        """
        reader.tell("reading the texts")
        splits = load_labelled(recipe.data, reader.base)
        classes = classes_of(splits.train.target, splits.train, recipe.model.classes)
        tokenizer = tokenizer_of(splits.train.source, recipe, reader)
        recipe = recipe.with_fields("model", vocab_size=tokenizer.vocab_size, classes=classes)
        training, max_seq_len = recipe.training, recipe.model.max_seq_len
        loader = LabelledLoader(
            splits.train,
            tokenizer,
            classes,
            max_seq_len=max_seq_len,
            batch_tokens=training.batch_tokens,
            seed=training.seed,
            too_long=recipe.data.too_long,
            token_dropout=training.token_dropout,
            slicing=reader.slicing(training),
        )
        labels, rows = numbered(splits.valid.target, classes, splits.valid), tokenizer.encode_batch(splits.valid.source)
        if recipe.data.too_long == "refuse":
            refuse_longer(splits.valid, rows, max_seq_len)
        return cls(
            recipe=recipe,
            tokenizer=tokenizer,
            loader=loader,
            valid=splits.valid,
            valid_batches=text_batches(rows, labels, max_seq_len, training.batch_tokens),
            report=report_labelled(splits, classes, tokenizer, loader),
            data=fingerprint(splits.train, splits.valid),
        )

    def write(self, folder: RunFolder) -> None:
        """Leave in the run folder what classifying needs beside the model."""
        folder.write(TOKENIZER, Tokenizers(self.tokenizer).to_bytes())

    def place(self, sample: int) -> str:
        """Name a training text by its line."""
        return f"line {self.loader.texts.line(sample)}"

    def objective(self, model: Network) -> Objective:
        """Return the loss that a model is learned from."""
        return text_objective(self.recipe.training)

    def flops(self, batch: LabelledBatch) -> float:
        """Count the floating-point operations of learning from a batch, forward and backward, padding included."""
        return count_flops(self.recipe.model, len(batch.samples), batch.source.tokens.shape[1], 1).training

    def measure(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Measure a model on the validation texts."""
        assert isinstance(model, TextClassifierTransformer)
        figures = validation_loss(model, self.valid_batches, autocast) | validation_accuracy(model, self.valid_batches, autocast)
        del figures["perplexity"]  # of classes it says nothing
        return figures

    def answer(self, model: Network, autocast: torch.autocast, precision: Precision) -> Answers:
        """Give a few validation texts with the class that a model finds."""
        assert isinstance(model, TextClassifierTransformer)
        shown = slice(self.recipe.training.validate_samples)
        classifier = Classifier(model, self.tokenizer, self.recipe.decoding)
        with autocast:
            answers = classifier.classify(self.valid.source[shown])
        rows = zip(self.valid.source[shown], self.valid.target[shown], answers, strict=True)
        return {}, tuple({"text": text, "class": label, "found": each.label} for text, label, each in rows)
