"""Learning rate against step."""

import math

from transom.config.components import build, implements
from transom.config.training import Cosine, PaperSchedule, ScheduleBrick, Training, WarmupStableDecay

HIGH = 0.1
"""How far above its end, as a share of the peak, a learning rate is worth a word."""


def learning_rate(step: int, training: Training, d_model: int) -> float:
    """Compute the learning rate of a step.

    Args:
        step: number of the step, from 1.
        training: peak, brick and number of steps.
        d_model: width, which the paper's own peak depends on.
    """
    warmup = training.schedule.warmup_steps
    peak = float((d_model * max(warmup, 1)) ** -0.5 if training.learning_rate == "paper" else training.learning_rate)
    return peak * share_of_peak(step, training.schedule, training.max_steps)


def too_short(training: Training) -> list[str]:
    """Say where a run ends before its learning rate has reached the peak."""
    warmup, steps = training.schedule.warmup_steps, training.max_steps
    if warmup < steps:
        return []
    return [
        f"the learning rate rises for {warmup:,} steps, and the run has {steps:,}: it stays below its peak; make"
        f" training.schedule.warmup_steps smaller, {max(steps // 10, 1):,} say, or training.max_steps larger"
    ]


def ends_early(training: Training, seconds_left: float, step: int, seconds_a_step: float) -> list[str]:
    """Say where the clock ends a run while its learning rate is still high.

    Args:
        training: steps, minutes and schedule.
        seconds_left: of ``max_minutes``.
        step: steps done.
        seconds_a_step: the pace.
    """
    steps, last = training.max_steps, step + int(seconds_left / seconds_a_step)
    rate, least = (share_of_peak(end, training.schedule, steps) for end in (last, steps))
    rises = last < training.schedule.warmup_steps
    if last >= steps or (rate < least + HIGH and not rises):
        return []
    told = int(float(f"{last:.1e}"))
    return [
        f"at this pace training.max_minutes = {training.max_minutes:g} ends the run at about step {told:,} of {steps:,}, its learning rate"
        f" still {'rising, ' if rises else ''}at {rate:.0%} of the peak; training.max_steps={told} would let it fall to its end"
    ]


def share_of_peak(step: int, schedule: ScheduleBrick, max_steps: int) -> float:
    """Compute the learning rate of a step as a share of the peak; ``step`` counts from 1."""
    warmup = schedule.warmup_steps
    return step / warmup if step < warmup else build(schedule, step, max_steps)


@implements(PaperSchedule)
def inverse_square_root(schedule: PaperSchedule, step: int, max_steps: int) -> float:
    """Compute sqrt(warmup / step) (Vaswani et al. 2017, eq. 3)."""
    return math.sqrt(schedule.warmup_steps / step)


@implements(Cosine)
def cosine(schedule: Cosine, step: int, max_steps: int) -> float:
    """Compute half a cosine from 1 at the end of the rise down to ``final``."""
    done = min((step - schedule.warmup_steps) / max(max_steps - schedule.warmup_steps, 1), 1.0)
    return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * done)) / 2


@implements(WarmupStableDecay)
def stable_then_decay(schedule: WarmupStableDecay, step: int, max_steps: int) -> float:
    """Compute 1, and a linear fall to zero over the last steps."""
    return min(1.0, max(max_steps - step + 1, 0) / max(round(schedule.decay * max_steps), 1))
