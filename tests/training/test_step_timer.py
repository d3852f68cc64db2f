"""The pace follows what steps take now, and what comes between them is spread over all steps."""

import pytest

from transom.training.step_timer import AVERAGING_STEPS, StepTimer


def test_the_first_step_counts_only_until_the_second() -> None:
    step_timer = StepTimer()
    step_timer.after_step(13.0)  # libraries are loaded, and a GPU starts
    assert step_timer.seconds_per_step == pytest.approx(13.0)
    for seconds in (5.0, 1.0, 3.0):
        step_timer.after_step(seconds)
    assert step_timer.seconds_per_step == pytest.approx(3.0)


def test_after_many_steps_a_machine_that_grew_slower_is_followed() -> None:
    step_timer = StepTimer()
    for seconds in [1.0] * 1000 + [3.0] * (5 * AVERAGING_STEPS):
        step_timer.after_step(seconds)
    assert 2.95 < step_timer.seconds_per_step <= 3.0


def test_what_comes_between_is_spread_evenly() -> None:
    step_timer = StepTimer()
    for step in range(1, 1001):
        step_timer.after_step(0.1)
        step_timer.after_pause(20.0 if step % 500 == 0 else 0.0)
    assert step_timer.seconds_per_step == pytest.approx(0.1 + 40 / 1000)
    assert StepTimer().seconds_per_step == 0.0


def test_a_forecast_waits_for_a_hundred_steps_or_twenty_seconds() -> None:
    fast, slow, single = StepTimer(), StepTimer(), StepTimer()
    for _ in range(99):
        fast.after_step(0.01)
    assert not fast.is_reliable
    fast.after_step(0.01)
    assert fast.is_reliable
    for _ in range(3):
        assert not slow.is_reliable
        slow.after_step(7.0)
    assert slow.is_reliable
    single.after_step(60.0)
    assert not single.is_reliable, "the first steps are slow"
