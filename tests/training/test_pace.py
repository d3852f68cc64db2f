"""The pace follows what steps take now, and what comes between them is spread over all steps."""

import pytest

from transom.training.pace import MEMORY, Pace


def test_a_few_steps_have_their_mean() -> None:
    pace = Pace()
    for seconds in (5.0, 1.0, 3.0):
        pace.stepped(seconds)
    assert pace.seconds_a_step == pytest.approx(3.0)


def test_after_many_steps_a_machine_that_grew_slower_is_followed() -> None:
    pace = Pace()
    for seconds in [1.0] * 1000 + [3.0] * (5 * MEMORY):
        pace.stepped(seconds)
    assert 2.95 < pace.seconds_a_step <= 3.0


def test_what_comes_between_is_spread_evenly() -> None:
    pace = Pace()
    for step in range(1, 1001):
        pace.stepped(0.1)
        pace.paused(20.0 if step % 500 == 0 else 0.0)
    assert pace.seconds_a_step == pytest.approx(0.1 + 40 / 1000)
    assert Pace().seconds_a_step == 0.0
