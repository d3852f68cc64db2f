"""Validate the raw weights and their average, and choose the better of the two."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transom.models.apply_lora import merge_lora
from transom.training.setup import TrainingSetup
from transom.training.train_state import load_trainable
from transom.training.weight_averaging import WeightsName


class ValidationResult(NamedTuple):
    """Result of a validation: the better of the raw and the averaged weights.

    Attributes:
        weights: the better weights, "raw" or "averaged".
        metrics: validation metrics of the better weights: loss, perplexity and further metrics of the task.
        samples: a few predictions with the better weights, and their inputs.
        candidate_metrics: loss and selection metric of all candidates, under keys such as ``averaged_loss``.
    """

    weights: WeightsName
    metrics: dict[str, float]
    samples: tuple[Mapping[str, Any], ...]
    candidate_metrics: dict[str, float]


def validate_candidates(
    setup: TrainingSetup, candidates: Mapping[WeightsName, Mapping[str, Tensor]], autocast: torch.autocast
) -> ValidationResult:
    """Evaluate the raw and the averaged weights on the validation data, and load the better ones into ``setup.eval_model``.

    The loss takes one pass over the validation data per candidate. Predictions, the slowest part, are generated for the better candidate
    only, unless ``training.best_checkpoint_metric`` itself needs predictions, as BLEU does.

    Args:
        setup: the run, with its task and recipe.
        candidates: trainable tensors of each candidate. Candidates with the same selection metric are compared by loss; if the loss is the
            same too, the first one is chosen.
        autocast: context that sets the dtype of matrix products.
    """
    task, select_by = setup.task, setup.recipe.training.best_checkpoint_metric
    measured, predictions = dict[WeightsName, dict[str, float]](), dict[WeightsName, tuple[Mapping[str, Any], ...]]()

    def load(name: WeightsName) -> None:
        load_trainable(setup.eval_model, merge_lora(setup.model, candidates[name]))

    def predict_validation(name: WeightsName) -> None:
        scores, predictions[name] = task.predict_validation(setup.eval_model, autocast, setup.precision)
        measured[name] |= scores

    for name in candidates:
        load(name)
        measured[name] = task.evaluate(setup.eval_model, autocast)
        if select_by not in measured[name]:
            predict_validation(name)
    best, *others = candidates
    for other in others:
        same = measured[other][select_by] == measured[best][select_by]
        if is_better(measured[other], measured[best], "loss" if same else select_by):
            best = other
    if best != name:
        load(best)
    if best not in predictions:
        predict_validation(best)
    candidate_metrics = {f"{name}_{key}": metrics[key] for key in dict.fromkeys(("loss", select_by)) for name, metrics in measured.items()}
    return ValidationResult(best, measured[best], predictions[best], candidate_metrics)


def is_better(metrics: Mapping[str, float], best: Mapping[str, float], select_by: str) -> bool:
    """Return whether ``metrics`` are better than ``best``, compared by the metric ``select_by``.

    Lower is better for the loss, higher for all other metrics. Metrics with a NaN loss are worse than all others.
    """
    if math.isnan(metrics["loss"]) or math.isnan(best["loss"]):
        return math.isnan(best["loss"]) and not math.isnan(metrics["loss"])
    gain = metrics[select_by] - best[select_by]
    return gain < 0 if lower_is_better(select_by) else gain > 0


def lower_is_better(select_by: str) -> bool:
    """Return whether lower values of a metric are better, as of the loss only."""
    return select_by == "loss"
