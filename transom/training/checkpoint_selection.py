"""Which weights a validation keeps: those of the optimizer or their average, and whether they are the best so far."""

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
    """The better of the weights that a validation compared.

    Attributes:
        weights: their name among the candidates.
        metrics: loss, perplexity and what else the task measures of them.
        samples: a few of their answers, with what they answer to.
        candidate_metrics: loss, and the figure that selects, of every candidate, as in ``averaged_loss``.
    """

    weights: WeightsName
    metrics: dict[str, float]
    samples: tuple[Mapping[str, Any], ...]
    candidate_metrics: dict[str, float]


def validate_candidates(
    setup: TrainingSetup, candidates: Mapping[WeightsName, Mapping[str, Tensor]], autocast: torch.autocast
) -> ValidationResult:
    """Measure each candidate on the validation data and leave the better one in ``setup.eval_model``.

    Each costs a pass over the validation data. Only the better one answers, which is what takes longest, unless the figure that selects is
    one of answers, as BLEU is.

    Args:
        setup: the run.
        candidates: values of all that learns, by name; of equally good ones the first wins.
        autocast: the arithmetic of the validation.
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
    """Compare two validations; any is better than one whose loss is not a number."""
    if math.isnan(metrics["loss"]) or math.isnan(best["loss"]):
        return math.isnan(best["loss"]) and not math.isnan(metrics["loss"])
    gain = metrics[select_by] - best[select_by]
    return gain < 0 if select_by == "loss" else gain > 0
