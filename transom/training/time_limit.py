"""Fit a run into ``training.max_minutes``: number of steps, warmup, and intervals of validations and checkpoints."""

import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from transom.config.training import TrainingConfig
from transom.training.lr_schedule import peak_learning_rate

FIRST_PLAN_SHARE, LATEST_FIRST_PLAN_SHARE = 0.05, 0.25
"""The first plan is made after 5% of the time limit and at least three steps, or as soon as the average time per step is reliable; with
fewer steps, whose times are not those of later steps, after a quarter of the limit."""

WARMUP_SHARE = 0.1
"""Maximum fraction of the steps that a time limit leaves for the warmup."""

WANTED_VALIDATIONS, MIN_VALIDATIONS, MAX_VALIDATION_SHARE = 10, 5, 0.2
"""A time limit leaves at least 10 validations, but fewer if they would take more than 20% of the time, and never fewer than 5."""

MIN_LOG_LINES = 50
"""A time limit leaves at least so many lines of training metrics, as far as there are steps."""

Count = Annotated[int, Field(ge=1)]


class StepPlan(BaseModel):
    """The part of the training settings that follows from a time limit and the measured time per step. Checkpoints store the plan.

    Attributes:
        max_minutes: the time limit of the plan.
        max_steps: number of steps that fit into the limit; the learning-rate schedule ends there.
        warmup_steps: steps of linear warmup.
        validate_every: steps between validations.
        checkpoint_every: steps between checkpoints.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    max_minutes: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    max_steps: Count
    warmup_steps: Annotated[int, Field(ge=0)]
    validate_every: Count
    checkpoint_every: Count

    def apply(self, training: TrainingConfig, d_model: int) -> TrainingConfig:
        """Return ``training`` with the values of the plan. The peak learning rate stays that of the recipe's warmup."""
        steps = {
            "max_steps": self.max_steps,
            "validate_every": self.validate_every,
            "checkpoint_every": self.checkpoint_every,
            "log_every": min(training.log_every, max(self.max_steps // MIN_LOG_LINES, 1)),
        }
        schedule = training.schedule.model_copy(update={"warmup_steps": self.warmup_steps})
        return training.model_copy(update={**steps, "schedule": schedule, "learning_rate": peak_learning_rate(training, d_model)})

    @property
    def note(self) -> str:
        """Describe the plan in a sentence."""
        return (
            f"about {self.max_steps:,} steps fit into {self.max_minutes:g} minute{'' if self.max_minutes == 1 else 's'}: warmup of"
            f" {self.warmup_steps:,} steps, learning rate decaying until the last step, validation every {self.validate_every:,} steps"
        )


def plan_steps(training: TrainingConfig, step: int, seconds: float, seconds_per_step: float, validation_seconds: float) -> StepPlan | None:
    """Plan a run with a time limit.

    Args:
        training: the recipe's training settings, with ``max_minutes``.
        step: number of optimizer steps so far.
        seconds: training time so far.
        seconds_per_step: measured seconds per step, validations and checkpoints excluded.
        validation_seconds: measured seconds of the last validation and checkpoint; 0 if there was none.

    Returns:
        The plan; None if all steps of the recipe fit into the limit.
    """
    assert training.max_minutes is not None, "only runs with a time limit are planned"
    left = 60 * training.max_minutes - seconds - validation_seconds  # the last validation
    pause_share = min(validation_seconds / (seconds_per_step * training.validate_every), MAX_VALIDATION_SHARE)
    max_steps = step + max(int(left / (seconds_per_step * (1 + pause_share))), 1)
    if max_steps >= training.max_steps:
        return None
    wanted = min(training.validate_every, max(max_steps // WANTED_VALIDATIONS, 1))
    affordable = math.ceil(validation_seconds / MAX_VALIDATION_SHARE / seconds_per_step)
    interval = min(max(wanted, affordable), max(max_steps // MIN_VALIDATIONS, 1))
    return StepPlan(
        max_minutes=training.max_minutes,
        max_steps=max_steps,
        warmup_steps=min(training.schedule.warmup_steps, max(int(WARMUP_SHARE * max_steps), 1)),
        validate_every=interval,
        checkpoint_every=min(training.checkpoint_every, interval),
    )


def limit_notes(training: TrainingConfig, reason: str | None, step: int, seconds: float) -> list[str]:
    """Return one note if a resumed run has nothing left to do, because its limits count the whole run; otherwise an empty list.

    Args:
        training: the recipe's training settings.
        reason: why the run ends before its first step; None if it does not.
        step: number of optimizer steps so far.
        seconds: training time so far.
    """
    if reason == "max_minutes":
        minutes = math.ceil(seconds / 60)
        return [
            f"warning: nothing is trained: the run has used {seconds / 60:.3g} of its {training.max_minutes:g} minutes; --minutes counts"
            f" the whole run, so give more, such as --minutes {2 * max(minutes, 1)}"
        ]
    if reason == "max_steps":
        return [f"warning: nothing is trained: the run has all of its {step:,} steps; give more, such as --steps {2 * step}"]
    return []
