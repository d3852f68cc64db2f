"""Which weights a validation keeps: those of the optimizer or their average, and whether they are the best so far."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transom.models.adapt import merged
from transom.training.average import WeightsName
from transom.training.setup import Parts
from transom.training.state import restore_learned


class Selected(NamedTuple):
    """The better of the weights that a validation compared.

    Attributes:
        weights: their name among the candidates.
        figures: loss, perplexity and what else the task measures of them.
        samples: a few of their answers, with what they answer to.
        compared: loss, and the figure that selects, of every candidate, as in ``averaged_loss``.
    """

    weights: WeightsName
    figures: dict[str, float]
    samples: tuple[Mapping[str, Any], ...]
    compared: dict[str, float]


def validate_candidates(parts: Parts, candidates: Mapping[WeightsName, Mapping[str, Tensor]], autocast: torch.autocast) -> Selected:
    """Measure each candidate on the validation data and leave the better one in ``parts.validated``.

    Each costs a pass over the validation data. Only the better one answers, which is what takes longest, unless the figure that selects is
    one of answers, as BLEU is.

    Args:
        parts: the run.
        candidates: values of all that learns, by name; of equally good ones the first wins.
        autocast: the arithmetic of the validation.
    """
    task, select_by = parts.task, parts.recipe.training.select_by
    measured, answered = dict[WeightsName, dict[str, float]](), dict[WeightsName, tuple[Mapping[str, Any], ...]]()

    def load(name: WeightsName) -> None:
        restore_learned(parts.validated, merged(parts.model, candidates[name]))

    def answer(name: WeightsName) -> None:
        scores, answered[name] = task.answer(parts.validated, autocast, parts.precision)
        measured[name] |= scores

    for name in candidates:
        load(name)
        measured[name] = task.measure(parts.validated, autocast)
        if select_by not in measured[name]:
            answer(name)
    chosen, *others = candidates
    for other in others:
        same = measured[other][select_by] == measured[chosen][select_by]
        if better(measured[other], measured[chosen], "loss" if same else select_by):
            chosen = other
    if chosen != name:
        load(chosen)
    if chosen not in answered:
        answer(chosen)
    compared = {f"{name}_{key}": figures[key] for key in dict.fromkeys(("loss", select_by)) for name, figures in measured.items()}
    return Selected(chosen, measured[chosen], answered[chosen], compared)


def better(figures: Mapping[str, float], best: Mapping[str, float], select_by: str) -> bool:
    """Compare two validations; any is better than one whose loss is not a number."""
    if math.isnan(figures["loss"]) or math.isnan(best["loss"]):
        return math.isnan(best["loss"]) and not math.isnan(figures["loss"])
    gain = figures[select_by] - best[select_by]
    return gain < 0 if select_by == "loss" else gain > 0
