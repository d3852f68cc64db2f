"""Scores of attention heads during training: what each head did at the checkpoints of a run, on one fixed input."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from transom.inspection.lenses.head_roles import THRESHOLDS, Head, head_scores
from transom.inspection.lenses.head_statistics import head_statistics

ENTROPY = "entropy"
"""Name of the entropy of the attention, as a share of its maximum, among the scores of roles."""


class HeadFormation(NamedTuple):
    """Scores of all heads at several steps of training.

    Attributes:
        steps: numbers of optimizer steps, ascending.
        heads: address of the layer, and index, of each head.
        scores: score of each role, and of ``ENTROPY``, by name; roles without a meaning for the model are left out. NaN where a role has no
            meaning for a layer, or where the weights are not finite.
    """

    steps: list[int]
    heads: list[Head]
    scores: dict[str, Float[Tensor, "steps heads"]]


def head_formation(models: Iterable[tuple[int, Any]], batches: Sequence[Any]) -> HeadFormation:
    """Compute the scores of ``head_scores`` and the entropy of ``head_statistics`` for the weights of several steps.

    Args:
        models: numbers of steps, ascending, each with the run or model that had been trained for so long.
        batches: batches or tensors, the same for all.

    Raises:
        ConfigError: there is no batch, or the model has no attention, or an approximation that implies negative weights.
        CertificationError: weights do not give the head outputs of a pass.
    """
    steps, names, heads = list[int](), [*THRESHOLDS, ENTROPY], list[Head]()
    rows: dict[str, list[list[float]]] = {name: [] for name in names}
    for step, model in models:
        statistics = head_statistics(model, batches).heads
        scores, heads = head_scores(model, statistics), [(each.address, each.head) for each in statistics]
        steps.append(step)
        for name in THRESHOLDS:
            rows[name].append([math.nan if (score := each.score(name)) is None else score for each in scores])
        rows[ENTROPY].append([each.entropy_share for each in statistics])
    found = {name: torch.tensor(values, dtype=torch.float64) for name, values in rows.items()}
    return HeadFormation(steps, heads, {name: x for name, x in found.items() if not bool(x.isnan().all())})
