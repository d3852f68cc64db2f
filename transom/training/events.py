"""Events of a training run, which callbacks receive; a callback is any callable that takes one event."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

StopReason = Literal["max_steps", "max_minutes", "patience", "stopped"]
"""Reason why a run ended: ``training.max_steps``, ``max_minutes`` or ``patience`` was reached, or a signal stopped the run."""


@dataclass(frozen=True)
class TrainingStarted:
    """The run is set up, and its first step, or the first step after resuming, follows.

    Attributes:
        folder: the run folder.
        step: number of optimizer steps so far; above 0 in a resumed run.
        max_steps: number of steps that the recipe sets.
        facts: facts about the run by name: data report, number of parameters, precision with its reason, speed of the machine.
        notes: sentences to print for the user.
        model: the model that is trained, a ``models.base.Network``; None if a forward pass needs several processes.
        first_batch: builds the first batch of the training data, a ``data.batch.Batch``.
        autocast: returns a context in which matrix products have the precision of the run.
    """

    folder: Path
    step: int
    max_steps: int
    facts: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    model: Any = field(default=None, repr=False)
    first_batch: Callable[[], Any] | None = field(default=None, repr=False)
    autocast: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext, repr=False)


@dataclass(frozen=True)
class StepFinished:
    """An optimizer step is done, or was skipped because the loss or the gradient was not finite.

    Attributes:
        step: number of this step, from 1.
        loss: training loss per target token, with label smoothing if the recipe sets it, in nats.
        nll: negative log-likelihood per target token, in nats.
        learning_rate: learning rate of this step.
        grad_norm: norm of the gradient over all parameters, before clipping.
        n_target_tokens: number of target tokens in the batch, without padding.
        target_tokens_per_second: target tokens per second in this step.
        matmul_utilization: FLOP/s of the model in this step, as a fraction of the machine's measured peak.
        seconds_left: estimated seconds until the end of the run.
        epochs: passes over the training data so far.
        skipped: places in the data of the samples that caused the step to be skipped; empty if the weights were updated.
        aux_metrics: values of auxiliary objectives in this step by name, such as ``max_expert_load``.
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
class MicroBatchesHalved:
    """Memory ran out in a step, which was then taken with smaller micro-batches; later steps have them too.

    Attributes:
        step: number of the step.
        rows: rows of the largest micro-batch from now on.
        n_splits: parts into which each micro-batch of the recipe is split from now on.
    """

    step: int
    rows: int
    n_splits: int

    @property
    def note(self) -> str:
        """Describe the change in a sentence."""
        rows = "1 row" if self.rows == 1 else f"at most {self.rows:,} rows"
        return (
            f"step {self.step:,}: memory ran out; micro-batches now have {rows}, {self.n_splits:,} per micro-batch of the recipe, with the"
            " same loss; transom find-batch finds the largest that fit"
        )


@dataclass(frozen=True)
class MemoryIsShort:
    """Rank 0 gives freed memory back to the system after each use, since there is no room to keep it; steps take longer.

    Attributes:
        step: number of optimizer steps so far.
        needed: bytes that this process held in its first steps.
        available: bytes that it may hold.
        ran_out: whether memory ran out in this step.
    """

    step: int
    needed: int
    available: int
    ran_out: bool

    @property
    def note(self) -> str:
        """Describe the change in a sentence."""
        given = "freed memory is given back to the system after each use, so that it fits, but takes longer; smaller batches are faster"
        if self.ran_out:
            return f"step {self.step:,}: memory ran out; {given}"
        return f"step {self.step:,}: training needs {self.needed / 2**30:.1f} of {self.available / 2**30:.1f} GiB of memory; {given}"


@dataclass(frozen=True)
class Forecast:
    """The time per step is stable enough to forecast the end of the run; sent again if a time limit leaves clearly more or fewer steps.

    Attributes:
        step: number of optimizer steps so far.
        max_steps: expected number of steps of the whole run.
        notes: sentences to print for the user: epochs of the whole run, and what a time limit changes.
    """

    step: int
    max_steps: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ValidationFinished:
    """A validation is done.

    Attributes:
        step: number of optimizer steps so far.
        metrics: validation metrics: loss, perplexity and further metrics of the task.
        best: whether the weights are the best so far, and therefore were written to the run folder.
        samples: a few predictions of the model, with inputs and references.
        weights: the better weights in this validation, "raw" or "averaged"; None without weight averaging.
    """

    step: int
    metrics: Mapping[str, float]
    best: bool
    samples: tuple[Mapping[str, str], ...] = ()
    weights: str | None = None


@dataclass(frozen=True)
class CheckpointSaved:
    """A checkpoint of ``step`` was written to the run folder ``folder`` and flushed to disk."""

    step: int
    folder: Path


@dataclass(frozen=True)
class TrainingFinished:
    """The run is over.

    Attributes:
        step: number of optimizer steps of the whole run.
        reason: reason why the run ended.
        best: validation metrics of the best weights, and the step of that validation.
        seconds: training time in seconds, including the time before the run was resumed.
        facts: totals of the run by name: target tokens, skipped steps, target tokens per second.
        weights: the best weights, "raw" or "averaged"; None without weight averaging.
    """

    step: int
    reason: StopReason
    best: Mapping[str, float]
    seconds: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None


Event = (
    TrainingStarted | StepFinished | MicroBatchesHalved | MemoryIsShort | Forecast | ValidationFinished | CheckpointSaved | TrainingFinished
)
Callback = Callable[[Event], None]
