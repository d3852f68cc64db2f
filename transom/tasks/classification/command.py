"""The object that ``transom classify`` uses for texts, with one class or any number of labels each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from transom.config.data import LabeledFilesConfig
from transom.data.labeled.class_labels import encode_label_sets, encode_labels
from transom.data.labeled.labeled_texts import LabeledTexts, read_labeled_texts
from transom.data.labeled.text_pairs import Text
from transom.decoding.inference import ProgressCallback
from transom.decoding.predictors.class_metrics import ClassificationMetrics, evaluate_predictions
from transom.decoding.predictors.classifier import Classifier, ClassPrediction
from transom.decoding.predictors.long_texts import LongTextPolicy
from transom.decoding.predictors.multi_label import LabelsPrediction, MultiLabelClassifier, MultiLabelMetrics, evaluate_label_sets

ClassifierT = TypeVar("ClassifierT", Classifier, MultiLabelClassifier)


@dataclass(frozen=True)
class _TextCommand(Generic[ClassifierT]):
    """Base of the objects that ``transom classify`` uses for texts."""

    NOUN: ClassVar[str] = "texts"
    KEY: ClassVar[str] = "text"

    classifier: ClassifierT

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of a text, special tokens excluded."""
        return self.classifier.max_tokens


class TextClassifyCommand(_TextCommand[Classifier]):
    """The object that ``transom classify`` uses for texts with one class each."""

    def classify(self, items: Sequence[Text], too_long: LongTextPolicy, notify: ProgressCallback) -> list[ClassPrediction]:
        """Predict the class of each text, or pair of texts."""
        return self.classifier.classify(items, too_long, notify)

    def labeled_data(self, path: Path, columns: Mapping[str, Any]) -> LabeledTexts:
        """Read a file of labeled texts.

        Raises:
            TransomError: the file cannot be read.
        """
        return read_labeled_texts(LabeledFilesConfig(file=str(path.absolute()), **columns), Path.cwd(), multi_label=False)

    def score(
        self, known: LabeledTexts, too_long: LongTextPolicy, notify: ProgressCallback, thresholds: Sequence[float] = ()
    ) -> ClassificationMetrics:
        """Return classification metrics on labeled texts.

        Raises:
            TransomError: a class is unknown to the model.
        """
        classes = self.classifier.model.config.classes
        encode_labels(known.target, classes, known)  # an unknown class is reported before all texts are classified
        found = self.classify(known.inputs, too_long, notify)
        return evaluate_predictions(found, known.target, known, classes, known.keys, thresholds)


class MultiLabelClassifyCommand(_TextCommand[MultiLabelClassifier]):
    """The object that ``transom classify`` uses for texts with any number of labels."""

    def classify(self, items: Sequence[Text], too_long: LongTextPolicy, notify: ProgressCallback) -> list[LabelsPrediction]:
        """Predict the labels of each text, or pair of texts."""
        return self.classifier.classify(items, too_long, notify)

    def labeled_data(self, path: Path, columns: Mapping[str, Any]) -> LabeledTexts:
        """Read a file of texts with any number of labels.

        Raises:
            TransomError: the file cannot be read.
        """
        return read_labeled_texts(LabeledFilesConfig(file=str(path.absolute()), **columns), Path.cwd(), multi_label=True)

    def score(
        self, known: LabeledTexts, too_long: LongTextPolicy, notify: ProgressCallback, thresholds: Sequence[float] = ()
    ) -> MultiLabelMetrics:
        """Return the metrics on labeled texts.

        Raises:
            TransomError: a label is unknown to the model.
        """
        classes = self.classifier.model.config.classes
        labels, found = encode_label_sets(known.target, classes, known), self.classify(known.inputs, too_long, notify)
        probabilities = np.array([[each.probabilities[label] for label in classes] for each in found])
        metrics = evaluate_label_sets(probabilities, labels, self.classifier.thresholds, known, classes, known.keys)
        n_too_long, n_dropped_tokens = sum(each.is_too_long for each in found), sum(each.n_dropped_tokens for each in found)
        return metrics._replace(n_too_long=n_too_long, n_dropped_tokens=n_dropped_tokens)


def text_classify_command(classifier: Classifier) -> TextClassifyCommand | MultiLabelClassifyCommand:
    """Return the object that ``transom classify`` uses for a classifier of texts."""
    if isinstance(classifier, MultiLabelClassifier):
        return MultiLabelClassifyCommand(classifier)
    return TextClassifyCommand(classifier)
