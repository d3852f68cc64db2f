"""Summary of one training run as plain data; the report and the model card are rendered from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, get_args

from transom.config.recipe import Recipe
from transom.data.reports.baseline import worse_than_baseline
from transom.decoding.predictors.class_metrics import ClassificationMetrics
from transom.decoding.predictors.multi_label import MultiLabelMetrics
from transom.decoding.predictors.results import Alignment
from transom.files.message import joined
from transom.inspection.messages.tables import message
from transom.inspection.sample_attention import NoAttention, PatchAttention, TextAttention

MetricsRecord = Mapping[str, Any]
"""A line of ``metrics.jsonl``."""


MIN_BETTER_POINTS = 0.5
"""Minimum difference of accuracy, F1 or BLEU that is reported between the saved weights and others."""


@dataclass(frozen=True)
class TestScore:
    """A test score of the best weights. Its signature states the settings of the metric that are needed to reproduce the score."""

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
        seconds: training time including validation, also that before the run was resumed.
        data: the data report as JSON.
        alignments: alignments of sample translations.
        classification: metrics of the saved weights on the validation data of a classifier.
        attention: attention of the saved weights over a validation sample; None if the task has no such sample.
        test_scores: test scores of the best weights.
        machine_notes: lines on the measured hardware, and on precision, threads and processes with the reasons for their choice.
    """

    name: str
    recipe: Recipe
    metrics: Sequence[MetricsRecord]
    n_parameters: int
    n_active: int
    seconds: float
    data: MetricsRecord
    alignments: Sequence[Alignment] = ()
    classification: ClassificationMetrics | MultiLabelMetrics | None = None
    attention: TextAttention | PatchAttention | NoAttention | None = None
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
        """Kind of the best weights, such as "averaged weights (the raw weights have loss 1.2345)"; None without weight averaging."""
        others = {"raw": "averaged", "averaged": "raw"}
        chosen = self.best_validation.get("weights") if self.best_validation else None
        if self.best_validation is None or chosen not in others:
            return None
        loss = self.best_validation.get(f"{others[chosen]}_loss")
        return message(f"weights.{chosen}") if loss is None else message(f"weights.{chosen}_than", loss=f"{loss:.4f}")

    @cached_property
    def problems(self) -> list[str]:
        """Sentences on problems of the run: a best validation loss that is NaN or worse than that of random guessing."""
        if self.best_validation is None:
            return []
        loss = _nan_if_none(self.best_validation["loss"])
        if math.isnan(loss):
            return [message("problems.not_a_number")]
        advice = message("problems.advice")
        worse = [joined("; ", [problem, advice]) for problem in worse_than_baseline(self.best_validation, self.data.get("baseline", ()))]
        return [*(worse or self._worse_than_uniform(loss)), *self._better_by_another_metric]

    @property
    def _better_by_another_metric(self) -> list[str]:
        """Describe a metric that could select the weights, by which those of another validation are clearly better."""
        best, training = self.best_validation, self.recipe.training
        found = list[str]()
        for key in get_args(type(training).model_fields["best_checkpoint_metric"].annotation):
            records = [record for record in self.validations if record.get(key) is not None]
            if best is None or best.get(key) is None or key == "loss" or key == training.best_checkpoint_metric:
                continue
            other = max(records, key=lambda record: float(record[key]))
            if other[key] - best[key] >= MIN_BETTER_POINTS:
                found.append(
                    message(
                        "problems.better_by_another_metric",
                        metric=key,
                        step=int(other["step"]),
                        value=f"{other[key]:.2f}",
                        saved_value=f"{best[key]:.2f}",
                        saved_step=int(best["step"]),
                        chosen_by=training.best_checkpoint_metric,
                    )
                )
        return found

    def _worse_than_uniform(self, loss: float) -> list[str]:
        """Describe a loss that is worse than that of a uniform distribution; for runs whose data report has no baseline."""
        if "baseline" in self.data or (choices := _n_choices(self.recipe)) is None or loss <= math.log(choices[0]):
            return []
        n, noun = choices
        return [message(f"problems.worse_than_random_{noun}", loss=f"{loss:.2f}", number=n, uniform=f"{math.log(n):.2f}")]

    @cached_property
    def samples(self) -> Sequence[Mapping[str, Any]]:
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
        """Return the records of one kind: "train", "validation", "skipped" or "halved"."""
        return [record for record in self.metrics if record.get("kind") == kind]

    def series(self, kind: str, key: str) -> list[tuple[float, float]]:
        """Return step and value of the field ``key`` in each record of ``kind`` that has the field; null becomes NaN."""
        return [(float(record["step"]), _nan_if_none(record[key])) for record in self.records_of_kind(kind) if key in record]


def summarize_run(
    name: str, recipe: Recipe, started_facts: Mapping[str, Any], metrics: Sequence[MetricsRecord], seconds: float
) -> RunSummary:
    """Summarize a run from its events and metrics.

    Args:
        name: name of the run folder.
        recipe: the resolved recipe.
        started_facts: ``facts`` of the event that starts the run.
        metrics: records of ``metrics.jsonl``.
        seconds: training time, from the event that ends the run.
    """
    flops, bandwidth = started_facts["peak_flops"], started_facts["bandwidth"]
    measured = message("machine.peak", flops=f"{flops / 1e9:,.0f}", bandwidth=f"{bandwidth / 1e9:,.0f}")
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
    """Return the number of classes or tokens between which the loss decides, and the noun "classes" or "tokens".

    None if the number is unknown, and for contrastive losses, where it depends on the batch.
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
