"""Training of classifiers of texts with any number of labels: settings, validation metrics and thresholds."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transom.config.model_overrides import UserOverrides
from transom.data.batch import MultiLabelTextBatch
from transom.data.labeled.class_labels import LabelSets
from transom.data.labeled.labeled_texts import EncodedLabels
from transom.data.reports.baseline import BaselineMetric, class_baseline, label_baseline
from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.multi_label import MultiLabelClassifier, choose_thresholds, label_set_scores
from transom.errors import ConfigError
from transom.models.encoder import TextClassifierTransformer
from transom.tasks.classification.schema import ClassificationRecipe
from transom.training.losses import binary_cross_entropy


def select_by_f1(recipe: ClassificationRecipe, own: UserOverrides | None) -> ClassificationRecipe:
    """Return a recipe for texts with any number of labels: if it fits itself to the data, micro F1 replaces the packaged accuracy.

    Args:
        recipe: the recipe.
        own: the fields that the user sets; None for a resumed run, whose recipe is kept.
    """
    training = recipe.training
    if not training.fit_to_data or training.best_checkpoint_metric != "accuracy":
        return recipe
    if own is None or "best_checkpoint_metric" in own.of("training"):
        return recipe
    return recipe.with_fields("training", best_checkpoint_metric="micro_f1")


def check_settings(recipe: ClassificationRecipe, multi_label: bool) -> None:
    """Reject training settings that need one class per text, or several labels.

    Raises:
        ConfigError: a setting does not fit.
    """
    metric, allowed = recipe.training.best_checkpoint_metric, ("micro_f1", "macro_f1") if multi_label else ("accuracy",)
    if metric not in ("loss", *allowed):
        expected, texts = " or ".join(map(repr, ("loss", *allowed))), "with any number of labels" if multi_label else "with one class each"
        raise ConfigError(f"training.best_checkpoint_metric: expected {expected} for texts {texts}, found {metric!r}; change it")
    if multi_label and recipe.training.r_drop:
        raise ConfigError(f"training.r_drop: expected 0 for texts with any number of labels, found {recipe.training.r_drop:g}; remove it")


def classifier_class(model: TextClassifierTransformer) -> type[Classifier]:
    """Return the class of the predictor for a model."""
    return MultiLabelClassifier if model.config.multi_label else Classifier


def trivial_baseline(train: EncodedLabels, valid: EncodedLabels, classes: Sequence[str]) -> list[BaselineMetric]:
    """Return the validation metrics of a predictor that knows only the frequencies of classes or labels."""
    if isinstance(train, np.ndarray) and isinstance(valid, np.ndarray):
        return label_baseline(train, valid, classes)
    return class_baseline(list(train), list(valid), classes)


def evaluate_multi_label(
    model: TextClassifierTransformer, batches: Sequence[MultiLabelTextBatch], autocast: torch.autocast
) -> dict[str, float]:
    """Return the binary cross-entropy per text, summed over its labels, and the scores of the labels with a probability of at least 0.5."""
    with autocast:
        logits, labels = _logits(model, batches)
    nll = binary_cross_entropy(logits, labels, 0.0)[1].item()
    return {"loss": nll / len(labels), **label_set_scores(logits.sigmoid().numpy(), _as_sets(labels), 0.5)}


def set_thresholds(model: TextClassifierTransformer, batches: Sequence[MultiLabelTextBatch]) -> None:
    """Choose the threshold of each label on validation texts, and store them in the model; see ``choose_thresholds``."""
    logits, labels = _logits(model, batches)
    chosen = choose_thresholds(logits.sigmoid().numpy(), _as_sets(labels))
    thresholds = model.get_buffer("thresholds")
    thresholds.copy_(torch.from_numpy(chosen).to(thresholds))


@torch.inference_mode()
def _logits(
    model: TextClassifierTransformer, batches: Sequence[MultiLabelTextBatch]
) -> tuple[Float[Tensor, "texts classes"], Float[Tensor, "texts classes"]]:
    """Return the logits, in float64, and the labels of all batches."""
    logits = [model(batch.to(model.device)).double().cpu() for batch in batches]
    return torch.cat(logits), torch.cat([batch.labels for batch in batches])


def _as_sets(labels: Float[Tensor, "texts classes"]) -> LabelSets:
    sets: LabelSets = labels.numpy().astype(np.uint8)
    return sets
