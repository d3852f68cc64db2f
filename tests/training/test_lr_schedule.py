"""Learning rates against their formulas."""

import math
from itertools import pairwise

import pytest

from transom.config.training import CosineScheduleConfig, InverseSqrtScheduleConfig, TrainingConfig, WarmupStableDecayConfig
from transom.training.lr_schedule import learning_rate, warmup_notes


def test_the_paper_s_formula() -> None:
    training = TrainingConfig(schedule=InverseSqrtScheduleConfig(warmup_steps=4000))
    for step in (1, 100, 3999, 4000, 4001, 100000):
        assert learning_rate(step, training, 512) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))


def test_cosine_rises_and_falls_to_its_share() -> None:
    training = TrainingConfig(schedule=CosineScheduleConfig(warmup_steps=10, min_lr_ratio=0.1), learning_rate=2.0, max_steps=110)
    assert learning_rate(5, training, 1) == pytest.approx(1.0)
    assert learning_rate(10, training, 1) == pytest.approx(2.0)
    assert learning_rate(60, training, 1) == pytest.approx(2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2))
    assert learning_rate(110, training, 1) == pytest.approx(0.2)


def test_warmup_stable_decay_ends_near_zero() -> None:
    training = TrainingConfig(schedule=WarmupStableDecayConfig(warmup_steps=10, decay_fraction=0.2), learning_rate=1.0, max_steps=100)
    rates = [learning_rate(step, training, 1) for step in range(1, 101)]
    assert rates[9:80] == [1.0] * 71
    assert rates[80] == pytest.approx(1.0) and rates[90] == pytest.approx(0.5) and rates[99] == pytest.approx(0.05)


@pytest.mark.parametrize(
    "schedule", [InverseSqrtScheduleConfig(warmup_steps=7), CosineScheduleConfig(warmup_steps=7), WarmupStableDecayConfig(warmup_steps=7)]
)
def test_no_schedule_jumps_or_goes_below_zero(schedule: InverseSqrtScheduleConfig | CosineScheduleConfig | WarmupStableDecayConfig) -> None:
    training = TrainingConfig(schedule=schedule, learning_rate=1.0, max_steps=200)
    rates = [learning_rate(step, training, 1) for step in range(1, 201)]
    assert min(rates) > 0 and max(rates) == pytest.approx(1.0)
    assert max(abs(a - b) for a, b in pairwise(rates)) <= 1 / 7 + 1e-9


@pytest.mark.parametrize(
    "schedule",
    [InverseSqrtScheduleConfig(warmup_steps=50), CosineScheduleConfig(warmup_steps=50), WarmupStableDecayConfig(warmup_steps=50)],
)
def test_a_run_that_ends_before_the_peak_is_told_of(
    schedule: InverseSqrtScheduleConfig | CosineScheduleConfig | WarmupStableDecayConfig,
) -> None:
    (line,) = warmup_notes(TrainingConfig(schedule=schedule, max_steps=50))
    assert "rises for 50 steps, and the run has 50" in line and "warmup_steps smaller, 5 say" in line
    assert not warmup_notes(TrainingConfig(schedule=schedule, max_steps=51))
