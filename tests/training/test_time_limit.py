"""Plans for a time limit: closed formulas, bounds for random settings, and the learning rates that follow."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.config.training import CosineScheduleConfig, InverseSqrtScheduleConfig, TrainingConfig
from transom.training.lr_schedule import learning_rate
from transom.training.time_limit import plan_steps


def settings(**changes: object) -> TrainingConfig:
    return TrainingConfig.model_validate(
        {
            "max_steps": 10_000,
            "max_minutes": 10.0,
            "learning_rate": 1e-3,
            "schedule": {"kind": "cosine", "warmup_steps": 500, "min_lr_ratio": 0.0},
            "validate_every": 500,
            "checkpoint_every": 1000,
            **changes,
        }
    )


def test_a_plan_fills_the_time_that_is_left() -> None:
    plan = plan_steps(settings(), step=100, seconds=100.0, seconds_per_step=1.0, validation_seconds=0.0)
    assert plan is not None and plan.max_steps == 600  # 100 + 500 s / 1 s
    assert (plan.warmup_steps, plan.validate_every, plan.checkpoint_every) == (60, 60, 60)  # a tenth of 600
    assert plan.note.startswith("about 600 steps fit into 10 minutes: warmup of 60 steps")


def test_validations_take_a_fifth_of_the_time_or_a_fifth_of_the_steps() -> None:
    plan = plan_steps(settings(), 100, 100.0, 1.0, validation_seconds=20.0)
    assert plan is not None
    assert plan.max_steps == 100 + int(480 / 1.04)  # 20 s of 500 steps are a share of 4%; the last validation takes 20 s
    assert plan.validate_every == 100  # 20 s / (20% * 1 s)
    assert (expensive := plan_steps(settings(), 100, 100.0, 1.0, 200.0)) is not None
    assert expensive.validate_every == expensive.max_steps // 5


def test_a_run_whose_steps_fit_needs_no_plan() -> None:
    assert plan_steps(settings(max_steps=600), 100, 100.0, 1.0, 0.0) is None
    assert plan_steps(settings(max_steps=601), 100, 100.0, 1.0, 0.0) is not None


def test_the_learning_rate_reaches_its_end_with_the_time() -> None:
    training = settings()
    plan = plan_steps(training, 100, 100.0, 1.0, 0.0)
    assert plan is not None
    planned = plan.apply(training, d_model=64)
    assert learning_rate(60, planned, 64) == pytest.approx(1e-3) and learning_rate(600, planned, 64) == pytest.approx(0.0, abs=1e-9)
    halfway = 60 + (600 - 60) / 2
    assert learning_rate(int(halfway), planned, 64) == pytest.approx(5e-4)


def test_the_papers_own_peak_stays_that_of_the_recipes_warmup() -> None:
    training = settings(learning_rate="noam", schedule=InverseSqrtScheduleConfig(warmup_steps=4000))
    plan = plan_steps(training, 100, 100.0, 1.0, 0.0)
    assert plan is not None and plan.warmup_steps == 60
    assert learning_rate(60, plan.apply(training, d_model=64), 64) == pytest.approx((64 * 4000) ** -0.5)


@given(
    step=st.integers(1, 5000),
    seconds=st.floats(0, 1000),
    seconds_per_step=st.floats(1e-4, 100),
    validation_seconds=st.floats(0, 1000),
    minutes=st.floats(0.01, 1000),
    warmup=st.integers(0, 5000),
    validate_every=st.integers(1, 1000),
)
def test_any_plan_is_within_its_bounds(
    step: int, seconds: float, seconds_per_step: float, validation_seconds: float, minutes: float, warmup: int, validate_every: int
) -> None:
    training = settings(max_minutes=minutes, validate_every=validate_every, schedule=CosineScheduleConfig(warmup_steps=warmup))
    plan = plan_steps(training, step, seconds, seconds_per_step, validation_seconds)
    if plan is None:
        return
    assert step < plan.max_steps < training.max_steps
    assert plan.warmup_steps <= min(warmup, max(plan.max_steps // 10, 1))
    assert 1 <= plan.validate_every <= max(plan.max_steps // 5, 1) and plan.checkpoint_every <= plan.validate_every
    left = 60 * minutes - seconds
    assert (plan.max_steps - step - 1) * seconds_per_step <= max(left, 0.0) * (1 + 1e-9)
    rates = [learning_rate(n, plan.apply(training, 64), 64) for n in (1, plan.max_steps)]
    assert all(math.isfinite(rate) and 0 <= rate <= 1e-3 * (1 + 1e-9) for rate in rates)
