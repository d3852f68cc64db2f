"""Summary of one training run as plain data; the report and the model card are rendered from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from transom.config.recipe import Recipe
from transom.decoding.predictors.results import Alignment

MetricsRecord = Mapping[str, Any]
"""A line of ``metrics.jsonl``."""


@dataclass(frozen=True)
class TestScore:
    """A test score of the best weights: metric, value, data set, and the signature that makes it reproducible."""

    metric: str
    value: float
    data: str
    signature: str


@dataclass(frozen=True)
class RunSummary:
    """Summary of one training run.

    Attributes:
        name: name of the run folder.
        recipe: the resolved recipe, with vocabulary sizes.
        metrics: records of ``metrics.jsonl``.
        n_parameters: number of parameters, tied ones counted once.
        n_active: parameters used per token.
        seconds: training time including validation, over all resumed sessions.
        data: the data report as JSON.
        alignments: alignments of some translations.
        test_scores: test scores of the best weights.
        machine_notes: lines on the hardware and the choices made for it (precision and threads with reasons).
    """

    name: str
    recipe: Recipe
    metrics: Sequence[MetricsRecord]
    n_parameters: int
    n_active: int
    seconds: float
    data: MetricsRecord
    alignments: Sequence[Alignment] = ()
    test_scores: Sequence[TestScore] = ()
    machine_notes: Sequence[str] = ()

    @cached_property
    def n_steps(self) -> int:
        """Number of optimizer steps."""
        return max((int(record["step"]) for record in self.metrics), default=0)

    @cached_property
    def validations(self) -> list[MetricsRecord]:
        return self.records_of_kind("validation")

    @cached_property
    def best_validation(self) -> MetricsRecord | None:
        """The record of the best validation, whose weights the run keeps."""
        return next((record for record in reversed(self.validations) if record["best"]), None)

    @cached_property
    def best_weights_note(self) -> str | None:
        """Whether the best weights are raw or averaged, with the loss of the others; None without weight averaging."""
        names = {"raw": "raw weights", "averaged": "averaged weights"}
        chosen = self.best_validation.get("weights") if self.best_validation else None
        if self.best_validation is None or chosen not in names:
            return None
        (other,) = names.keys() - {chosen}
        loss = self.best_validation.get(f"{other}_loss")
        return names[chosen] + (f" (the {names[other]} have loss {loss:.4f})" if loss is not None else "")

    @cached_property
    def problems(self) -> list[str]:
        """Sentences on problems of the training that need attention."""
        if self.best_validation is None:
            return []
        loss = _nan_if_none(self.best_validation["loss"])
        if math.isnan(loss):
            return ["the validation loss of the best weights is not a number; lower training.learning_rate"]
        if (choices := _n_choices(self.recipe)) is None or loss <= math.log(choices[0]):
            return []
        return [
            f"the validation loss of the best weights is {loss:.2f} nats, worse than random: a uniform distribution over {choices[0]:,}"
            f" {choices[1]} has ln {choices[0]:,} = {math.log(choices[0]):.2f}; train longer, change training.learning_rate, or check"
            " the data"
        ]

    @cached_property
    def samples(self) -> Sequence[Mapping[str, str]]:
        """Sample predictions of the best weights on validation data, with their inputs."""
        return self.best_validation.get("samples", ()) if self.best_validation else ()

    @cached_property
    def throughput(self) -> float | None:
        """Median of the logged target tokens per second, validation excluded."""
        return _median(self.series("train", "target_tokens_per_second"))

    @cached_property
    def matmul_utilization(self) -> float | None:
        """Median matmul utilization: fraction of the measured peak FLOP/s, from 0 to 1."""
        return _median(self.series("train", "matmul_utilization"))

    def records_of_kind(self, kind: str) -> list[MetricsRecord]:
        """Return the records of one kind: "train", "validation" or "skipped"."""
        return [record for record in self.metrics if record.get("kind") == kind]

    def series(self, kind: str, key: str) -> list[tuple[float, float]]:
        """Return (step, value) of a field; non-finite values become NaN, records without the field are skipped."""
        return [(float(record["step"]), _nan_if_none(record[key])) for record in self.records_of_kind(kind) if key in record]


def summarize_run(
    name: str, recipe: Recipe, started_facts: Mapping[str, Any], metrics: Sequence[MetricsRecord], seconds: float
) -> RunSummary:
    """Summarize a run from its events and metrics.

    Args:
        name: name of the run folder.
        recipe: the resolved recipe.
        started_facts: the facts of the run's first event.
        metrics: records of ``metrics.jsonl``.
        seconds: training time from the run's last event.
    """
    flops, bandwidth = started_facts["peak_flops"], started_facts["bandwidth"]
    measured = f"measured peak: matmul {flops / 1e9:,.0f} GFLOP/s, memory {bandwidth / 1e9:,.0f} GB/s"
    choices = [started_facts[choice] for choice in ("precision", "threads", "processes") if started_facts[choice]]
    return RunSummary(
        name=name,
        recipe=recipe,
        metrics=metrics,
        n_parameters=started_facts["parameters"],
        n_active=started_facts["active_parameters"],
        seconds=seconds,
        data=started_facts["data"],
        machine_notes=(*choices, measured, f"torch {started_facts['torch']}"),
    )


def _n_choices(recipe: Recipe) -> tuple[int, str] | None:
    """Return the number of classes that the loss is over, and their noun ("classes" or "tokens").

    None if the number is unknown, and for contrastive losses, whose number depends on the batch.
    """
    if not recipe.GUESSES:
        return None
    if classes := getattr(recipe.model, "classes", ()):
        return len(classes), "classes"
    n_tokens = getattr(recipe.model, "target_vocab_size", None) or getattr(recipe.model, "vocab_size", None)
    return None if n_tokens is None else (n_tokens, "tokens")


def _nan_if_none(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _median(points: Sequence[tuple[float, float]]) -> float | None:
    values = [value for _, value in points if math.isfinite(value)]
    return median(values) if values else None
