import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.inspection.pages.number_format import (
    format_compact,
    format_count,
    format_duration,
    format_percent,
    linear_ticks,
    log_ticks,
    tick_labels,
)

NUMBERS = st.floats(-1e12, 1e12).filter(lambda value: value == 0 or abs(value) > 1e-12)


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (999, "999"), (1234, "1234"), (99_999, "100k"), (1_500_000, "1.5M"), (2e9, "2G"), (-12345, "-12.3k"), (4.5e-5, "4.5e-5")],
)
def test_compact(value: float, written: str) -> None:
    assert format_compact(value) == written


def test_compact_names_what_is_not_finite() -> None:
    assert [format_compact(value) for value in (math.inf, math.nan)] == ["inf", "nan"]


@given(NUMBERS)
def test_compact_is_short_and_close(value: float) -> None:
    written = format_compact(value)
    number = float(written[:-1]) * {"k": 1e3, "M": 1e6, "G": 1e9}[written[-1]] if written[-1] in "kMG" else float(written)
    assert len(written) <= 8
    assert number == pytest.approx(value, rel=0.06)


def test_other_figures() -> None:
    assert (format_count(1234567.4), format_percent(0.1234, 1)) == ("1,234,567", "12.3%")
    assert [format_duration(seconds) for seconds in (0, 59.6, 60, 3599.7)] == ["0.0 s", "1 min 0 s", "1 min 0 s", "1 h 0 min"]


@given(NUMBERS, NUMBERS)
def test_linear_ticks_cover_evenly(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    ticks = linear_ticks(low, high)
    steps = [after - before for before, after in itertools.pairwise(ticks)]
    slack = 1e-6 * max(abs(low), abs(high), steps[0])
    assert ticks[0] <= low + slack and ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= 8
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-3)


@given(st.floats(1e-8, 1e8), st.floats(1.5, 1e9))
def test_log_ticks_cover(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio)
    assert ticks[0] <= low * 1.000001 and ticks[-1] * 1.000001 >= low * ratio
    assert 2 <= len(ticks) <= 18
    assert ticks == sorted(set(ticks))


@given(st.floats(-1e6, 1e6), st.floats(1e-4, 1e6))
def test_tick_labels_differ(low: float, span: float) -> None:
    labels = tick_labels(linear_ticks(low, low + span))
    assert len(set(labels)) == len(labels)
