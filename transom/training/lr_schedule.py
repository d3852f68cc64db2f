"""Learning-rate schedules."""

import math

from transom.config.component_registry import build, implements
from transom.config.training import CosineScheduleConfig, InverseSqrtScheduleConfig, ScheduleConfig, TrainingConfig, WarmupStableDecayConfig


def learning_rate(step: int, training: TrainingConfig, d_model: int) -> float:
    """Compute the learning rate of a step.

    Args:
        step: number of the step, from 1.
        training: peak learning rate, schedule and number of steps.
        d_model: model width, on which ``learning_rate = "noam"`` depends.
    """
    return peak_learning_rate(training, d_model) * lr_factor(step, training.schedule, training.max_steps)


def peak_learning_rate(training: TrainingConfig, d_model: int) -> float:
    """Return the learning rate at the end of warmup; ``"noam"`` is (d_model * warmup_steps)^-0.5 (Vaswani et al. 2017, eq. 3)."""
    if training.learning_rate == "noam":
        return float((d_model * max(training.schedule.warmup_steps, 1)) ** -0.5)
    return float(training.learning_rate)


def warmup_notes(training: TrainingConfig) -> list[str]:
    """Return one note if the warmup has at least as many steps as the run; otherwise an empty list."""
    warmup, steps = training.schedule.warmup_steps, training.max_steps
    if warmup < steps:
        return []
    return [
        f"the learning rate rises for {warmup:,} steps, and the run has {steps:,}: it stays below its peak; make"
        f" training.schedule.warmup_steps smaller, {max(steps // 10, 1):,} say, or training.max_steps larger"
    ]


def lr_factor(step: int, schedule: ScheduleConfig, max_steps: int) -> float:
    """Compute the learning rate of a step, counted from 1, as a fraction of the peak: linear warmup, then the schedule."""
    warmup = schedule.warmup_steps
    return step / warmup if step < warmup else build(schedule, step, max_steps)


@implements(InverseSqrtScheduleConfig)
def inverse_sqrt_factor(schedule: InverseSqrtScheduleConfig, step: int, max_steps: int) -> float:
    """Compute sqrt(warmup_steps / step) (Vaswani et al. 2017, eq. 3)."""
    return math.sqrt(schedule.warmup_steps / step)


@implements(CosineScheduleConfig)
def cosine_factor(schedule: CosineScheduleConfig, step: int, max_steps: int) -> float:
    """Compute half a cosine, from 1 at the end of warmup down to ``min_lr_ratio`` at ``max_steps``."""
    progress = min((step - schedule.warmup_steps) / max(max_steps - schedule.warmup_steps, 1), 1.0)
    return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * (1 + math.cos(math.pi * progress)) / 2


@implements(WarmupStableDecayConfig)
def warmup_stable_decay_factor(schedule: WarmupStableDecayConfig, step: int, max_steps: int) -> float:
    """Compute 1, followed by a linear decay towards 0 over the last ``decay_fraction`` of all steps."""
    return min(1.0, max(max_steps - step + 1, 0) / max(round(schedule.decay_fraction * max_steps), 1))
