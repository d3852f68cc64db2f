"""Text classification task: predict the class of a text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from transom.config.data import LabelledFiles
from transom.config.decoding import Reading
from transom.data.batch import LabelledBatch
from transom.data.labeled.classes import classes_of, numbered
from transom.data.labeled.labelled import LabelledLoader, load_labelled, read_labelled, refuse_longer, text_batches
from transom.data.pairs.pairs import Pairs, fingerprint
from transom.data.reports.labelled import report_labelled
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.backends.searcher import reader_of
from transom.decoding.inference import Tell
from transom.decoding.predictors.classifier import Classified, Classifier, Scores, scored
from transom.decoding.predictors.long_texts import TooLong
from transom.models.encoder import TextClassifierTransformer
from transom.models.network import Network
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.classification.schema import ClassificationRecipe
from transom.tasks.encoders import embedder_of
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask, train_text_tokenizers
from transom.training.objectives.objective import Objective
from transom.training.objectives.r_drop import text_objective
from transom.training.start import tokenizer_of
from transom.training.task import Answers, Reader
from transom.training.validation import validation_accuracy, validation_loss


@dataclass(frozen=True)
class TextsClassified:
    """The object that ``transom classify`` uses for texts."""

    NOUN: ClassVar[str] = "texts"
    KEY: ClassVar[str] = "text"

    classifier: Classifier

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of a text, special tokens excluded."""
        return self.classifier.model.config.max_seq_len - 1

    def classify(self, items: list[str], too_long: TooLong, tell: Tell) -> list[Classified]:
        """Predict the class of each text."""
        return self.classifier.classify(items, too_long, tell)

    def score(self, labelled: Path, too_long: TooLong, tell: Tell) -> Scores:
        """Return classification metrics on a file of labeled texts.

        Raises:
            TransomError: the file cannot be read, or a class is unknown to the model.
        """
        known = read_labelled(LabelledFiles(file=str(labelled.absolute())), Path.cwd())
        return scored(self.classify(known.source, too_long, tell), known.target, known, self.classifier.model.config.classes)


class ClassificationTask(TextTask[ClassificationRecipe, LabelledLoader, Pairs]):
    """Text classification: tokenized texts with their classes."""

    PREDICTOR: ClassVar[type] = Classifier
    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"classify": TextsClassified, "embed": embedder_of}

    @classmethod
    def load(cls, recipe: ClassificationRecipe, base: Path) -> Splits[Pairs]:
        """Read the texts; the target of each pair is the class.

        Raises:
            TransomError: the texts cannot be read.
        """
        return load_labelled(recipe.data, base)

    @classmethod
    def read(cls, recipe: ClassificationRecipe, reader: Reader) -> Self:
        """Read the texts, train or load the tokenizer, and build the data report.

        Raises:
            TransomError: the texts cannot be read or do not fit the recipe.
        """
        reader.tell("reading the texts")
        splits = cls.load(recipe, reader.base)
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
            tokenizers=Tokenizers(tokenizer),
            loader=loader,
            valid=splits.valid,
            valid_batches=text_batches(rows, labels, max_seq_len, training.batch_tokens),
            report=report_labelled(splits, classes, tokenizer, loader),
            data=fingerprint(splits.train, splits.valid),
        )

    def objective(self, model: Network) -> Objective:
        """Return the training loss of the task."""
        return text_objective(self.recipe.training)

    def flops(self, batch: LabelledBatch) -> float:
        """Return the FLOPs of a training step on a batch: forward and backward pass, padding included."""
        return count_flops(self.recipe.model, len(batch.samples), batch.source.tokens.shape[1], 1).training

    def measure(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return validation loss and accuracy."""
        assert isinstance(model, TextClassifierTransformer)
        figures = validation_loss(model, self.valid_batches, autocast) | validation_accuracy(model, self.valid_batches, autocast)
        del figures["perplexity"]  # perplexity is not meaningful for classes
        return figures

    def answer(self, model: Network, autocast: torch.autocast, precision: Precision) -> Answers:
        """Predict the classes of a few validation texts."""
        assert isinstance(model, TextClassifierTransformer)
        shown = slice(self.recipe.training.validate_samples)
        classifier = Classifier(model, self.tokenizer, self.recipe.decoding)
        with autocast:
            answers = classifier.classify(self.valid.source[shown])
        rows = zip(self.valid.source[shown], self.valid.target[shown], answers, strict=True)
        return {}, tuple({"text": text, "class": label, "found": each.label} for text, label, each in rows)

    @classmethod
    def predictor(cls, run: LoadedRun) -> Classifier:
        """Return the predictor of a run."""
        assert isinstance(run.model, TextClassifierTransformer)
        return Classifier(run.model, run.tokenizer, run.decoding or Reading(), run.precision, reader_of(run.model), run.origin)

    @classmethod
    def train_tokenizers(cls, recipe: ClassificationRecipe, base: Path, tell: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        return train_text_tokenizers(cls.load(recipe, base).train.source, recipe.tokenizer, tell)
