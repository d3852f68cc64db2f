"""What a run tells its observers: plain callables that take one of these."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

StopReason = Literal["max_steps", "max_minutes", "patience", "stopped"]
"""Why a run ended: its steps or minutes are over, validation improves no more, or somebody stopped it."""


@dataclass(frozen=True)
class TrainingStarted:
    """The run is set up and takes its first step next.

    Attributes:
        folder: the run folder.
        step: steps done so far; not 0 when the run is resumed.
        max_steps: steps planned.
        facts: what is known before the run: data report, parameters, precision and its reason, machine.
        notes: sentences that a person should read.
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
        loss: smoothed loss a target token, in nats.
        nll: negative log-likelihood a target token, in nats.
        learning_rate: the step's learning rate.
        grad_norm: norm of the whole gradient before clipping.
        n_target_tokens: true target tokens of the batch.
        target_tokens_per_second: true target tokens over the step's time.
        matmul_utilization: model FLOP/s over the machine's measured peak, from 0 to 1.
        seconds_left: estimate to the end of the run.
        epochs: passes over the training data so far.
        skipped: places in the training data for whose sake the step was skipped; empty when it was taken.
        aux_metrics: what the objectives of the model's components measured, such as the load of its experts.
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
    """The pace has settled, and tells of the run's end.

    Attributes:
        step: steps done.
        notes: sentences that a person should read.
    """

    step: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ValidationFinished:
    """The validation set was read.

    Attributes:
        step: steps done.
        metrics: loss, perplexity and what else the task measures.
        best: True if these weights are the best so far and were written.
        samples: a few answers of the model, with what they answer to and what was expected.
        weights: "raw" or "averaged", whichever were better; None where the run averages none.
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
        step: steps done.
        reason: why it ended.
        best: validation figures of the kept weights, with their step.
        seconds: training time, over all sittings.
        facts: totals: target tokens, skipped steps, tokens a second.
        weights: "raw" or "averaged", whichever were kept; None where the run averages none.
    """

    step: int
    reason: StopReason
    best: Mapping[str, float]
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None


Event = TrainingStarted | StepFinished | Forecast | ValidationFinished | CheckpointSaved | TrainingFinished
Callback = Callable[[Event], None]
