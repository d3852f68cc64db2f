"""Text classification task: predict the class of a text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from transom.config.data import LabeledFilesConfig
from transom.config.decoding import TextInferenceConfig
from transom.data.batch import LabeledTextBatch
from transom.data.labeled.class_labels import collect_classes, encode_labels, spread_over_classes
from transom.data.labeled.labeled_texts import (
    LabeledTextLoader,
    labeled_text_batches,
    load_labeled_texts,
    read_labeled_texts,
    reject_too_long,
)
from transom.data.pairs.pairs import Pairs, fingerprint
from transom.data.reports.baseline import class_baseline
from transom.data.reports.labeled_texts import report_labeled_texts
from transom.data.split import Splits
from transom.data.text.input_profile import InputProfile
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.backends.decoder_backend import build_encoder_backend
from transom.decoding.inference import ProgressCallback
from transom.decoding.predictors.class_metrics import ClassificationMetrics, evaluate_predictions, evaluate_probabilities
from transom.decoding.predictors.classifier import Classifier, ClassPrediction
from transom.decoding.predictors.long_texts import LongTextPolicy
from transom.models.base import Network
from transom.models.encoder import TextClassifierTransformer
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.classification.schema import ClassificationRecipe
from transom.tasks.embed_command import as_embedder
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask, train_text_tokenizers
from transom.training.finetune import load_or_train_tokenizer
from transom.training.objectives.objective import Objective
from transom.training.objectives.r_drop import choose_text_loss
from transom.training.task_protocol import ScoredPredictions, TaskContext
from transom.training.validation import validation_accuracy, validation_loss


@dataclass(frozen=True)
class TextClassifyCommand:
    """The object that ``transom classify`` uses for texts."""

    NOUN: ClassVar[str] = "texts"
    KEY: ClassVar[str] = "text"

    classifier: Classifier

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of a text, special tokens excluded."""
        return self.classifier.model.config.max_seq_len - 1

    def classify(self, items: list[str], too_long: LongTextPolicy, notify: ProgressCallback) -> list[ClassPrediction]:
        """Predict the class of each text."""
        return self.classifier.classify(items, too_long, notify)

    def labeled_data(self, path: Path, columns: Mapping[str, Any]) -> Pairs:
        """Read a file of labeled texts.

        Raises:
            TransomError: the file cannot be read.
        """
        return read_labeled_texts(LabeledFilesConfig(file=str(path.absolute()), **columns), Path.cwd())

    def score(
        self, known: Pairs, too_long: LongTextPolicy, notify: ProgressCallback, thresholds: Sequence[float] = ()
    ) -> ClassificationMetrics:
        """Return classification metrics on labeled texts.

        Raises:
            TransomError: a class is unknown to the model.
        """
        classes = self.classifier.model.config.classes
        encode_labels(known.target, classes, known)  # an unknown class is reported before all texts are classified
        found = self.classify(known.source, too_long, notify)
        return evaluate_predictions(found, known.target, known, classes, known.source, thresholds)


class ClassificationTask(TextTask[ClassificationRecipe, LabeledTextLoader, Pairs]):
    """Text classification: tokenized texts with their classes."""

    PREDICTOR: ClassVar[type] = Classifier
    COMMANDS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"classify": TextClassifyCommand, "embed": as_embedder}

    @classmethod
    def load(cls, recipe: ClassificationRecipe, base: Path) -> Splits[Pairs]:
        """Read the texts; the target of each pair is the class.

        Raises:
            TransomError: the texts cannot be read.
        """
        return load_labeled_texts(recipe.data, base)

    @classmethod
    def read(cls, recipe: ClassificationRecipe, context: TaskContext) -> Self:
        """Read the texts, train or load the tokenizer, and build the data report.

        Raises:
            TransomError: the texts cannot be read or do not fit the recipe.
        """
        context.notify("reading the texts")
        splits = cls.load(recipe, context.base)
        classes = collect_classes(splits.train.target, splits.train, recipe.model.classes)
        tokenizer = load_or_train_tokenizer(splits.train.source, recipe, context)
        recipe = recipe.with_fields("model", vocab_size=tokenizer.vocab_size, classes=classes)
        training, max_seq_len = recipe.training, recipe.model.max_seq_len
        loader = LabeledTextLoader(
            splits.train,
            tokenizer,
            classes,
            max_seq_len=max_seq_len,
            batch_tokens=training.batch_tokens,
            seed=training.seed,
            too_long=recipe.data.too_long,
            word_dropout=training.word_dropout,
            micro_batching=context.micro_batching(training),
        )
        labels, rows = encode_labels(splits.valid.target, classes, splits.valid), tokenizer.encode_batch(splits.valid.source)
        if recipe.data.too_long == "refuse":
            reject_too_long(splits.valid, rows, max_seq_len)
        baseline = class_baseline(encode_labels(splits.train.target, classes, splits.train), labels, classes)
        return cls(
            recipe=recipe,
            tokenizers=Tokenizers(tokenizer),
            loader=loader,
            valid=splits.valid,
            valid_batches=labeled_text_batches(rows, labels, max_seq_len, training.batch_tokens),
            report=report_labeled_texts(splits, classes, tokenizer, loader).with_baseline(baseline),
            data_hash=fingerprint(splits.train, splits.valid),
            input_profile=InputProfile.from_texts(splits.train.source, splits.valid.source),
        )

    def objective(self, model: Network) -> Objective:
        """Choose the training loss of the task: cross-entropy or R-Drop."""
        return choose_text_loss(self.recipe.training)

    def flops(self, batch: LabeledTextBatch) -> float:
        """Return the FLOPs of a training step on a batch: forward and backward pass, padding included."""
        return count_flops(self.recipe.model, len(batch.sample_ids), batch.source.tokens.shape[1], 1).training

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return validation loss and accuracy."""
        assert isinstance(model, TextClassifierTransformer)
        figures = validation_loss(model, self.valid_batches, autocast) | validation_accuracy(model, self.valid_batches, autocast)
        del figures["perplexity"]  # perplexity is not meaningful for classes
        return figures

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Predict the classes of a few validation texts, which are different and spread over the classes."""
        shown = spread_over_classes(self.valid.target, self.valid.source, self.recipe.training.validate_samples)
        texts = [self.valid.source[i] for i in shown]
        with autocast:
            answers = self._classifier(model).classify(texts)
        rows = zip(texts, shown, answers, strict=True)
        return {}, tuple({"text": text, "class": self.valid.target[i], "found": each.label, "p": each.p} for text, i, each in rows)

    def classification_metrics(self, model: Network, autocast: torch.autocast) -> ClassificationMetrics:
        """Return the metrics of a model's predictions for all validation texts, for the report."""
        classes = self.recipe.model.classes
        with autocast:
            probabilities = self._classifier(model).predict_proba(self.valid.source)
        return evaluate_probabilities(
            probabilities, encode_labels(self.valid.target, classes, self.valid), self.valid, classes, self.valid.source
        )

    def _classifier(self, model: Network) -> Classifier:
        assert isinstance(model, TextClassifierTransformer)
        return Classifier(model, self.tokenizer, self.recipe.decoding)

    @classmethod
    def predictor(cls, run: LoadedRun) -> Classifier:
        assert isinstance(run.model, TextClassifierTransformer)
        return Classifier(
            run.model, run.tokenizer, run.decoding or TextInferenceConfig(), run.precision, build_encoder_backend(run.model), run.origin
        )

    @classmethod
    def train_tokenizers(cls, recipe: ClassificationRecipe, base: Path, notify: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        return train_text_tokenizers(cls.load(recipe, base).train.source, recipe.tokenizer, notify)
