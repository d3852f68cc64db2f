"""Events of a training run, which callbacks receive; a callback is any callable that takes one event."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

StopReason = Literal["max_steps", "max_minutes", "patience", "stopped"]
"""Reason for the end of a run: steps or minutes used up, no further improvement in validation, or a stop signal."""


@dataclass(frozen=True)
class TrainingStarted:
    """The run is set up and starts its first step.

    Attributes:
        folder: the run folder.
        step: number of steps so far; not 0 in a resumed run.
        max_steps: planned number of steps.
        facts: data report, number of parameters, precision with its reason, machine.
        notes: sentences for the user.
    """

    folder: Path
    step: int
    max_steps: int
    facts: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepFinished:
    """One optimizer step is done.

    Attributes:
        step: its number, from 1.
        loss: smoothed loss per target token, in nats.
        nll: negative log-likelihood per target token, in nats.
        learning_rate: the step's learning rate.
        grad_norm: norm of the whole gradient before clipping.
        n_target_tokens: target tokens of the batch, without padding.
        target_tokens_per_second: target tokens per second of the step.
        matmul_utilization: model FLOP/s over the machine's measured peak, from 0 to 1.
        seconds_left: estimated time to the end of the run.
        epochs: passes over the training data so far.
        skipped: samples that caused the step to be skipped; empty otherwise.
        aux_metrics: metrics of auxiliary objectives, such as the load of experts.
    """

    step: int
    loss: float
    nll: float
    learning_rate: float
    grad_norm: float
    n_target_tokens: int
    target_tokens_per_second: float
    matmul_utilization: float
    seconds_left: float
    epochs: float
    skipped: tuple[str, ...] = ()
    aux_metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Forecast:
    """The time per step is stable enough to forecast the end of the run.

    Attributes:
        step: number of steps so far.
        notes: sentences for the user.
    """

    step: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ValidationFinished:
    """A validation is done.

    Attributes:
        step: number of steps so far.
        metrics: loss, perplexity and further metrics of the task.
        best: True if these weights are the best so far and were written.
        samples: a few predictions of the model, with inputs and references.
        weights: "raw" or "averaged", whichever were better; None without weight averaging.
    """

    step: int
    metrics: Mapping[str, float]
    best: bool
    samples: tuple[Mapping[str, str], ...] = ()
    weights: str | None = None


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint is durably on disk."""

    step: int
    folder: Path


@dataclass(frozen=True)
class TrainingFinished:
    """The run is over.

    Attributes:
        step: number of steps.
        reason: reason for the end.
        best: validation metrics of the best weights, with their step.
        seconds: training time, including that before the run was resumed.
        facts: totals: target tokens, skipped steps, tokens per second.
        weights: "raw" or "averaged", whichever were kept; None without weight averaging.
    """

    step: int
    reason: StopReason
    best: Mapping[str, float]
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None


Event = TrainingStarted | StepFinished | Forecast | ValidationFinished | CheckpointSaved | TrainingFinished
Callback = Callable[[Event], None]
