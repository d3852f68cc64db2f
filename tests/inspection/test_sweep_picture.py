"""The picture of a sweep: axes as the fields are sampled, few panels per row, and the spread over the seeds."""

import math
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg

from transom.inspection.plots.picture import Picture, style
from transom.inspection.plots.sweep import SweepPoint, sweep_picture

FIELDS = ("training.learning_rate", "model.dropout", "model.d_ff", "model.norm")
VALUES = (("2e-4", "0.01", "16", "rmsnorm"), ("5e-3", "0.29", "300", "layernorm"))


def picture(n_fields: int = 4) -> Picture:
    """Return the picture of two configurations with two seeds each."""
    values = [dict(zip(FIELDS[:n_fields], each, strict=False)) for each in VALUES]
    points = [
        SweepPoint(1, values[0], 1, 5, 3.0, (2.9, 3.1)),
        SweepPoint(2, values[1], 1, 5, 2.5),
        SweepPoint(2, values[1], 2, 10, 2.2, (2.0, 2.4)),
    ]
    return sweep_picture("copy", "loss (nats)", points, 2, {"training.learning_rate": True, "model.dropout": False})


def drawn(shown: Picture) -> Any:
    """Return the figure after its layout."""
    figure = shown.figure()
    with style():
        FigureCanvasAgg(figure).draw()
    return figure


def test_axes_are_scaled_as_the_field_is_sampled() -> None:
    scales = [axes.get_xscale() for axes in drawn(picture()).axes]
    assert scales == ["log", "linear", "log", "linear"], "a range by its sampling, a list of numbers by their ratio"


def test_labels_between_powers_of_ten_are_as_low_as_the_others() -> None:
    axis = drawn(picture(1)).axes[0].xaxis
    labels = [label for ticks in (axis.get_major_ticks(), axis.get_minor_ticks()) for tick in ticks if (label := tick.label1).get_text()]
    assert {label.get_text() for label in labels} >= {"0.001", "0.002"}
    assert len({round(label.get_window_extent().y0, 1) for label in labels}) == 1


def test_a_range_of_many_powers_with_a_diverged_configuration_is_drawn() -> None:
    points = [SweepPoint(i + 1, {FIELDS[0]: rate}, 1, 5, loss) for i, (rate, loss) in enumerate((("1e-3", 3.0), ("1e30", math.nan)))]
    assert "1 diverged" in (shown := sweep_picture("copy", "loss", points, 1, {})).alt and drawn(shown).axes[0].get_xscale() == "log"


def test_a_row_has_at_most_three_panels() -> None:
    figure = drawn(picture())
    tops = [round(axes.get_position().y1, 2) for axes in figure.axes]
    assert tops[0] == tops[1] == tops[2] > tops[3] and len(tops) == 4
    assert picture().size[0] == picture(3).size[0] < 10 and [bool(axes.get_ylabel()) for axes in figure.axes] == [True, False, False, True]


def test_each_seed_is_drawn_and_inside_the_axis() -> None:
    axes = drawn(picture(1)).axes[0]
    (seeds,) = [each for each in axes.collections if each.get_label().startswith("each seed")]
    assert sorted(y for _, y in seeds.get_offsets()) == [2.0, 2.4, 2.9, 3.1]
    low, high = axes.get_ylim()
    assert low < 2.0 and high > 3.1


def test_the_text_alternative_is_a_sentence() -> None:
    assert picture(3).alt == (
        "Validation loss (nats) of 2 configurations of copy over training.learning_rate, model.dropout and model.d_ff, at 2 rungs. Best is"
        " training.learning_rate = 5e-3, model.dropout = 0.29 and model.d_ff = 300: 2.2 after 10 steps. None diverged."
    )
