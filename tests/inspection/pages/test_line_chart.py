import itertools
import math
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transom.inspection.pages.line_chart import BOTTOM, LEFT, MAX_POINTS, MAX_PROBES, RIGHT, TOP, Line, line_chart
from transom.inspection.pages.markup import to_svg


def drawn(picture: Element, tag: str, class_: str) -> list[Element]:
    """Find elements by one of their classes."""
    return [element for element in picture.iter(tag) if class_ in element.get("class", "").split()]


def places(polyline: Element) -> list[tuple[float, float]]:
    """Read the points of a polyline."""
    return [(float(x), float(y)) for x, y in (point.split(",") for point in polyline.get("points", "").split())]


def test_a_line_goes_from_corner_to_corner() -> None:
    picture = line_chart("Loss", [Line("loss", [(0, 0.0), (50, 5.0), (100, 10.0)])])
    assert places(drawn(picture, "polyline", "line-0")[0]) == [(LEFT, BOTTOM), ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2), (RIGHT, TOP)]


def test_axis_names_its_ticks_and_unit() -> None:
    picture = line_chart("Loss", [Line("loss", [(0, 1.0), (1000, 2.0)])], x_label="epoch")
    words = [text.text for text in picture.iter("text")]
    assert {"1", "2", "1000", "epoch"} <= set(words)


def test_wide_positive_ranges_are_logarithmic_and_others_not() -> None:
    points = [(0, 1.0), (1, 10.0), (2, 100.0)]
    log = places(drawn(line_chart("a", [Line("a", points)]), "polyline", "curve")[0])
    linear = places(drawn(line_chart("a", [Line("a", points)], from_zero=True), "polyline", "curve")[0])
    assert log[1][1] == (TOP + BOTTOM) / 2
    assert linear[1][1] > log[1][1]


@pytest.mark.parametrize("values", [(0.0, 1e-320), (0.0, 5e-324), (1e-320, 1e-320), (5e-324, 1e-310), (1e-320, 1.0), (-1e-320, 1e-320)])
@pytest.mark.parametrize("from_zero", [True, False])
def test_values_without_a_power_of_ten_of_their_own_are_drawn_as_zero(values: tuple[float, float], from_zero: bool) -> None:
    """As the learning rates of a run with one of 1e-320."""
    picture = line_chart("a", [Line("a", list(enumerate(values)))], from_zero=from_zero)
    assert all(TOP <= y <= BOTTOM for _, y in places(drawn(picture, "polyline", "line-0")[0]))


def test_many_points_become_means_over_a_band() -> None:
    n = 10 * MAX_POINTS
    picture = line_chart("a", [Line("a", [(x, float(x % 10)) for x in range(n)])])
    assert {y for _, y in places(drawn(picture, "polyline", "curve")[0])} == {(TOP + BOTTOM) / 2 + (BOTTOM - TOP) * 0.05}
    assert {y for _, y in places(drawn(picture, "polygon", "band")[0])} == {TOP + 0.1 * (BOTTOM - TOP), BOTTOM}


def test_values_that_are_not_finite_leave_a_gap() -> None:
    picture = line_chart("a", [Line("a", [(0, 1.0), (1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0)])])
    assert [len(places(polyline)) for polyline in drawn(picture, "polyline", "curve")] == [2, 1]


def test_two_lines_have_a_legend_and_share_the_axes() -> None:
    picture = line_chart("a", [Line("training", [(0, 1.0), (10, 2.0)]), Line("validation", [(5, 3.0)])])
    assert [text.text for group in drawn(picture, "g", "legend") for text in group.iter("text")] == ["training", "validation"]
    assert places(drawn(picture, "polyline", "line-1")[0]) == [((LEFT + RIGHT) / 2, TOP)]


def test_readout_tells_the_values_under_the_pointer() -> None:
    picture = line_chart("a", [Line("training", [(0, 1.0), (10, 2.0)]), Line("validation", [(9, 3.0)])])
    readouts = [text.text for text in drawn(picture, "text", "readout")]
    assert readouts == ["step 0  ·  training 1  ·  validation 3 (at 9)", "step 10  ·  training 2  ·  validation 3 (at 9)"]


def test_strips_tile_the_chart() -> None:
    picture = line_chart("a", [Line("a", [(x, float(x)) for x in range(1000)])])
    strips = [(float(strip.get("x", "")), float(strip.get("width", ""))) for strip in drawn(picture, "rect", "strip")]
    assert len(strips) <= MAX_PROBES
    assert strips[0][0] == LEFT and sum(strips[-1]) == pytest.approx(RIGHT, abs=0.11)
    assert all(x + width == pytest.approx(after, abs=0.11) for (x, width), (after, _) in itertools.pairwise(strips))


def test_axes_can_be_shared() -> None:
    line = Line("a", [(50, 2.0), (100, 4.0)])
    shared = line_chart("a", [line], x_range=(0, 200), y_range=(0, 8), from_zero=True)
    assert places(drawn(shared, "polyline", "curve")[0]) == [
        (LEFT + (RIGHT - LEFT) / 4, TOP + (BOTTOM - TOP) * 0.75),
        ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2),
    ]
    doubling = line_chart("a", [Line("a", [(16, 1.0), (32, 1.0), (64, 1.0)])], x_log=True)
    assert [x for x, _ in places(drawn(doubling, "polyline", "curve")[0])] == [LEFT, (LEFT + RIGHT) / 2, RIGHT]
    assert {"16", "32", "64"} <= {text.text for text in doubling.iter("text")}


def test_long_names_and_values_take_more_rows() -> None:
    few, many = ([Line(f"a method of many words {i}", [(0, 1.0), (1, 2.0)]) for i in range(n)] for n in (1, 4))
    rows = [
        sorted({float(text.get("y", "")) for group in drawn(line_chart("a", lines), "g", "legend") for text in group.iter("text")})
        for lines in (few, many)
    ]
    assert rows == [[], [-46.0, -26.0, -6.0, 14.0]]
    assert line_chart("a", few).get("viewBox", "").startswith("0 0 ")
    assert line_chart("a", many).get("viewBox", "").startswith("0 -60 ")


def test_mark_stands_at_its_step() -> None:
    picture = line_chart("a", [Line("a", [(0, 1.0), (100, 2.0)])], mark=(50, "kept"))
    assert drawn(picture, "line", "mark")[0].get("x1") == f"{(LEFT + RIGHT) / 2:g}"
    assert "kept" in [text.text for text in picture.iter("text")]


def test_screen_readers_are_told_the_course() -> None:
    picture = line_chart("Loss", [Line("training", [(1, 9.0), (100, 2.0), (200, 2.5)])])
    said = "training: 9 at step 1, 2.5 at step 200, between 2 and 9."
    assert (picture.get("role"), picture.findtext("title"), picture.findtext("desc")) == ("img", "Loss", said)


@settings(max_examples=40)
@given(st.lists(st.lists(st.tuples(st.integers(0, 10**6), st.floats(width=32)), max_size=200), min_size=1, max_size=3), st.booleans())
def test_any_lines_with_a_finite_point_stay_within_the_frame(series: list[list[tuple[int, float]]], from_zero: bool) -> None:
    lines = [Line(f"line {i}", sorted((float(x), y) for x, y in points)) for i, points in enumerate(series)]
    if not any(math.isfinite(y) for line in lines for _, y in line.points):
        lines.append(Line("one", [(3.0, 1.0)]))
    picture = line_chart("a", lines, from_zero=from_zero)
    found = [point for polyline in picture.iter("polyline") for point in places(polyline)]
    assert found
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in found)
    assert "nan" not in to_svg(picture)


def test_more_lines_than_styles_have_them_again() -> None:
    picture = line_chart("many", [Line(f"l{i}", [(0.0, float(i)), (1.0, i + 1.0)]) for i in range(6)])
    curves = [str(line.get("class")) for line in picture.iter("polyline") if "curve" in str(line.get("class"))]
    assert curves == [f"curve line-{i % 4}" for i in range(6)]
