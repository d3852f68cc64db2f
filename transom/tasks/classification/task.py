"""The text classification task, which predicts the class of a text."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from transom.config.decoding import TextInferenceConfig
from transom.data.batch import LabeledTextBatch, MultiLabelTextBatch
from transom.data.labeled.class_labels import collect_classes, split_labels, spread_over_classes
from transom.data.labeled.labeled_texts import (
    LabeledTextLoader,
    LabeledTexts,
    encode_targets,
    labeled_text_batches,
    load_labeled_texts,
    reject_too_long,
)
from transom.data.labeled.text_pairs import encode_texts
from transom.data.pairs.pairs import fingerprint
from transom.data.reports.labeled_texts import report_labeled_texts
from transom.data.split import Splits
from transom.data.text.input_profile import InputProfile
from transom.data.tokenizer.tokenizer import Tokenizers
from transom.decoding.predictors.class_metrics import ClassificationMetrics, evaluate_probabilities
from transom.decoding.predictors.classifier import Classifier, ClassPrediction
from transom.decoding.predictors.multi_label import LabelsPrediction, MultiLabelClassifier, MultiLabelMetrics, evaluate_label_sets
from transom.models.base import Network
from transom.models.encoder import TextClassifierTransformer
from transom.planning.flops import count_flops
from transom.planning.precision import Precision
from transom.tasks.classification.command import text_classify_command
from transom.tasks.classification.multi_label import (
    check_settings,
    classifier_class,
    evaluate_multi_label,
    select_by_f1,
    set_thresholds,
    trivial_baseline,
)
from transom.tasks.classification.schema import ClassificationRecipe
from transom.tasks.embed_command import as_embedder
from transom.tasks.task import LoadedRun
from transom.tasks.text import TextTask, train_text_tokenizers, vocabulary_fields
from transom.training.finetune import load_or_train_tokenizer
from transom.training.objectives.multi_label import BinaryCrossEntropy
from transom.training.objectives.objective import Objective
from transom.training.objectives.r_drop import choose_text_loss
from transom.training.task_protocol import ScoredPredictions, TaskContext
from transom.training.validation import validation_accuracy, validation_loss

NO_LABEL = "(no label)"
"""Shown for a text without labels."""


class ClassificationTask(TextTask[ClassificationRecipe, LabeledTextLoader, LabeledTexts]):
    """Text classification: tokenized texts with their classes, or with any number of labels (``recipe.model.multi_label``)."""

    PREDICTOR: ClassVar[type] = Classifier
    COMMANDS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"classify": text_classify_command, "embed": as_embedder}

    @classmethod
    def load(cls, recipe: ClassificationRecipe, base: Path) -> Splits[LabeledTexts]:
        """Read the texts; the target of each pair is the class.

        Raises:
            TransomError: the texts cannot be read.
        """
        known = recipe.model.multi_label if recipe.model.classes else None  # a resumed or fine-tuned model
        return load_labeled_texts(recipe.data, base, known if recipe.data.multi_label is None else recipe.data.multi_label)

    @classmethod
    def read(cls, recipe: ClassificationRecipe, context: TaskContext) -> Self:
        """Read the texts, train or load the tokenizer, and build the data report.

        Raises:
            TransomError: the texts cannot be read or do not fit the recipe.
        """
        context.notify("reading the texts")
        splits = Splits(**{name: LabeledTexts.of(part) for name, part in cls.load(recipe, context.base).parts.items()})
        multi_label = splits.train.multi_label
        recipe = select_by_f1(recipe, context.own) if multi_label else recipe
        check_settings(recipe, multi_label)
        names = [label for joined in splits.train.target for label in split_labels(joined)] if multi_label else splits.train.target
        classes = collect_classes(names, splits.train, recipe.model.classes)
        recipe = context.fit(recipe, len(splits.train), splits.train.all_texts)
        tokenizer = load_or_train_tokenizer(splits.train.all_texts, recipe, context)
        recipe = recipe.with_fields("model", **vocabulary_fields(tokenizer), classes=classes, multi_label=multi_label)
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
            n_token_types=recipe.model.n_token_types,
        )
        labels, rows = encode_targets(splits.valid, classes), encode_texts(tokenizer, splits.valid.inputs)
        if recipe.data.too_long == "refuse":
            reject_too_long(splits.valid, rows, max_seq_len, tokenizer.special_tokens)
        baseline = trivial_baseline(encode_targets(splits.train, classes), labels, classes)
        return cls(
            recipe=recipe,
            tokenizers=Tokenizers(tokenizer),
            loader=loader,
            valid=splits.valid,
            valid_batches=labeled_text_batches(
                rows, labels, max_seq_len, training.batch_tokens, tokenizer.special_tokens, recipe.model.n_token_types
            ),
            report=report_labeled_texts(splits, classes, tokenizer, loader).with_baseline(baseline),
            data_hash=fingerprint(splits.train, splits.valid),
            input_profile=InputProfile.from_texts(splits.train.all_texts, splits.valid.all_texts),
        )

    def objective(self, model: Network) -> Objective:
        """Choose the training loss of the task: cross-entropy or R-Drop, or binary cross-entropy for several labels per text."""
        if self.recipe.model.multi_label:
            return BinaryCrossEntropy(self.recipe.training.label_smoothing)
        return choose_text_loss(self.recipe.training)

    def flops(self, batch: LabeledTextBatch | MultiLabelTextBatch) -> float:
        """Return the FLOPs of a training step on a batch: forward and backward pass, padding included."""
        return count_flops(self.recipe.model, len(batch.sample_ids), batch.source.tokens.shape[1], 1).training

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Return validation loss and accuracy; for several labels per text, F1 and others at a threshold of 0.5."""
        assert isinstance(model, TextClassifierTransformer)
        if self.recipe.model.multi_label:
            return evaluate_multi_label(model, self.valid_batches, autocast)
        figures = validation_loss(model, self.valid_batches, autocast) | validation_accuracy(model, self.valid_batches, autocast)
        del figures["perplexity"]  # perplexity is not meaningful for classes
        return figures

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Predict the classes of a few validation texts, which are different and spread over the classes.

        For several labels per text, choose the threshold of each label first, and store the thresholds in the model.
        """
        assert isinstance(model, TextClassifierTransformer)
        keys, texts = self.valid.keys, self.valid.inputs
        shown = spread_over_classes(self.valid.target, keys, self.recipe.training.validate_samples)
        with autocast:
            if self.recipe.model.multi_label:
                set_thresholds(model, self.valid_batches)
            answers = self._classifier(model).classify([texts[i] for i in shown])
        rows = zip(shown, answers, strict=True)
        return {}, tuple({"text": keys[i], "class": self.valid.target[i] or NO_LABEL, **_shown(each)} for i, each in rows)

    def classification_metrics(self, model: Network, autocast: torch.autocast) -> ClassificationMetrics | MultiLabelMetrics:
        """Return the metrics of a model's predictions for all validation texts, for the report."""
        classes, classifier = self.recipe.model.classes, self._classifier(model)
        labels = encode_targets(self.valid, classes)
        with autocast:
            probabilities = classifier.predict_proba(self.valid.inputs)
        if isinstance(labels, np.ndarray):
            assert isinstance(classifier, MultiLabelClassifier)
            return evaluate_label_sets(probabilities, labels, classifier.thresholds, self.valid, classes, self.valid.keys)
        return evaluate_probabilities(probabilities, labels, self.valid, classes, self.valid.keys)

    def _classifier(self, model: Network) -> Classifier:
        assert isinstance(model, TextClassifierTransformer)
        return classifier_class(model)(model, self.tokenizer, self.recipe.decoding)

    @classmethod
    def predictor(cls, run: LoadedRun) -> Classifier:
        assert isinstance(run.model, TextClassifierTransformer)
        return classifier_class(run.model)(
            run.model, run.tokenizer, run.decoding or TextInferenceConfig(), run.precision, run.encoder_backend, run.origin
        )

    @classmethod
    def train_tokenizers(cls, recipe: ClassificationRecipe, base: Path, notify: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data."""
        return train_text_tokenizers(LabeledTexts.of(cls.load(recipe, base).train).all_texts, recipe, base, notify)


def _shown(found: ClassPrediction | LabelsPrediction) -> dict[str, Any]:
    """Return the prediction of a sample text, as ``metrics.jsonl`` has it."""
    if isinstance(found, LabelsPrediction):
        return {"found": found.joined or NO_LABEL}
    return {"found": found.label, "p": found.p}
