"""A picture of a learning-rate range test."""

from typing import TYPE_CHECKING

from transom.inspection.plots.picture import CATEGORIES, Picture, set_log_scale
from transom.training.range_test import RangeTest

if TYPE_CHECKING:
    from matplotlib.figure import Figure


COLUMNS = ("learning rate", "loss", "smoothed loss")
"""Columns of the numbers of the picture."""


def range_test_picture(found: RangeTest, name: str) -> Picture:
    """Draw the loss of each step and its moving average over the logarithm of the learning rate, with the suggestion.

    Args:
        found: the test.
        name: name of the recipe.
    """
    rates, losses, smoothed = zip(*found.points, strict=True)
    steepest, lowest = found.points[found.steepest], found.points[found.lowest]

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        axes.plot(rates, losses, color="#BBBBBB", linewidth=0.9, label="loss of the batch")
        axes.plot(rates, smoothed, color=CATEGORIES[0], linewidth=1.8, label="smoothed loss")
        axes.plot(steepest.learning_rate, steepest.smoothed, "o", color=CATEGORIES[5], label="steepest descent")
        axes.plot(lowest.learning_rate, lowest.smoothed, "s", color=CATEGORIES[2], label="lowest")
        axes.axvline(found.suggestion, color="#000000", linewidth=1.0, linestyle="--", label=f"suggested: {found.suggestion:g}")
        low, high = min(losses), max(losses[: found.lowest + 1])
        margin = 0.05 * (high - low)
        axes.set_ylim(low - margin, high + 4 * margin)  # the losses after the minimum may be many times as large
        set_log_scale(axes)
        axes.set_xlabel("learning rate")
        axes.set_ylabel("training loss (nats)")
        axes.legend(frameon=False, fontsize=8)

    alt = (
        f"Training loss of {name} over {len(found.points)} learning rates from {rates[0]:.3g} to {rates[-1]:.3g}. The smoothed loss falls"
        f" fastest at {steepest.learning_rate:.2g} and is lowest at {lowest.learning_rate:.2g}, where it is {lowest.smoothed:.3f}; the"
        f" suggested rate is {found.suggestion:g}."
    )
    return Picture(f"Learning-rate range test of {name}", alt, COLUMNS, [tuple(point) for point in found.points], draw, (6.4, 4.2))
