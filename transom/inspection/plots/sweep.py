"""A picture of a sweep: each field's values against the validation metric."""

import math
from collections.abc import Mapping, Sequence
from statistics import quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

from transom.data.reports.findings import count_noun
from transom.inspection.plots.picture import CATEGORIES, Cell, Picture, set_log_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v", "P", "*", "h")
"""Markers of the rungs, the first rung first; further rungs reuse them."""

FENCE = 3.0
"""Metrics further from the quartiles than this many times the distance between them are drawn at the edge (Tukey 1977)."""

MAX_LABEL_CHARACTERS = 24
"""Names with more characters in all are written upright."""

LOG_RATIO = 10.0
"""Positive values of a list whose ratio is at least this have a logarithmic axis."""

MAX_COLUMNS = 3
"""Panels side by side; further ones are in further rows."""


class SweepPoint(NamedTuple):
    """The metric of one configuration at the end of one rung.

    Attributes:
        configuration: number of the configuration, from 1.
        values: value of each field, as it is written in a recipe.
        rung: number of the rung, from 1.
        steps: steps after which the metric was measured.
        metric: the metric, as the mean over the seeds; NaN if a run diverged.
        seeds: the metric of each seed, if they are to be drawn.
    """

    configuration: int
    values: Mapping[str, str]
    rung: int
    steps: int
    metric: float
    seeds: tuple[float, ...] = ()


def sweep_picture(name: str, metric: str, points: Sequence[SweepPoint], best: int, is_log: Mapping[str, bool]) -> Picture:
    """Draw a panel per field: the values of all configurations against the metric, with a marker per rung.

    Args:
        name: name of the recipe.
        metric: name of the metric, with its unit.
        points: all measurements; at least one is finite.
        best: number of the best configuration.
        is_log: whether each field with a range is sampled on a logarithmic scale, as its axis is then; lists are left out.
    """
    fields = list(points[0].values)
    at_best = [point for point in points if point.configuration == best][-1]

    n_columns = min(len(fields), MAX_COLUMNS)
    n_rows = math.ceil(len(fields) / n_columns)

    def draw(figure: "Figure") -> None:
        grid = figure.subplots(n_rows, n_columns, squeeze=False, sharey=True)
        panels = grid.flatten()
        low, high = _shown([point.metric for point in points])
        drawn = [low, high, *(seed for point in points if low <= point.metric <= high for seed in point.seeds)]
        low, high = min(drawn), max(drawn)
        margin = 0.08 * (high - low or 1.0)
        panels[0].set_ylim(low - margin, high + margin)
        for axes, field in zip(panels, fields, strict=False):
            _draw_field(axes, field, points, at_best, is_log.get(field))
        for axes in panels[len(fields) :]:
            axes.remove()
        for axes in grid[:, 0]:
            axes.set_ylabel(f"validation {metric}")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)

    n = len({point.configuration for point in points})
    n_diverged = len({point.configuration for point in points if math.isnan(point.metric)})
    chosen = _join([f"{field} = {value}" for field, value in at_best.values.items()])
    n_rungs = max(point.rung for point in points)
    alt = (
        f"Validation {metric} of {count_noun(n, 'configuration')} of {name} over {_join(fields)}, at {count_noun(n_rungs, 'rung')}."
        f" Best is {chosen}: {at_best.metric:.4g} after {at_best.steps:,} steps. {n_diverged or 'None'} diverged."
    )
    columns = ("configuration", *fields, "rung", "steps", metric)
    rows: list[tuple[Cell, ...]] = [
        (point.configuration, *point.values.values(), point.rung, point.steps, point.metric) for point in points
    ]
    return Picture(f"Sweep of {name}", alt, columns, rows, draw, (max(3.2 * n_columns, 5.0), 0.9 + 3.3 * n_rows))


def _join(parts: Sequence[str]) -> str:
    """Join words by commas, and the last one by "and".

    >>> _join(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _draw_field(axes: "Axes", field: str, points: Sequence[SweepPoint], best: SweepPoint, is_log: bool | None) -> None:
    """Draw one panel; numbers have a numeric axis, and other values a place each."""
    written = list(dict.fromkeys(point.values[field] for point in points))
    numbers = [_number(value) for value in written]
    is_numeric = all(map(math.isfinite, numbers))
    place: dict[str, float] = dict(zip(written, numbers if is_numeric else map(float, range(len(written))), strict=True))
    low, high = _shown([point.metric for point in points])
    finite = [point for point in points if low <= point.metric <= high]
    for rung in sorted({point.rung for point in finite}):
        of_rung = [point for point in finite if point.rung == rung]
        style: Any = {"marker": MARKERS[(rung - 1) % len(MARKERS)], "color": CATEGORIES[(rung - 1) % len(CATEGORIES)]}
        label = f"{of_rung[0].steps:,} steps"
        axes.scatter([place[point.values[field]] for point in of_rung], [point.metric for point in of_rung], s=28, label=label, **style)
    seeds = [(place[point.values[field]], seed) for point in finite for seed in point.seeds]
    if seeds:
        style = {"marker": "_", "color": "#000000", "linewidths": 0.9, "label": "each seed, at the last rung"}
        axes.scatter([at for at, _ in seeds], [seed for _, seed in seeds], s=14, **style)
        spread = [(place[point.values[field]], min(point.seeds), max(point.seeds)) for point in finite if point.seeds]
        axes.vlines(*zip(*spread, strict=True), color="#000000", linewidths=0.7, zorder=0.5)
    bottom, top = axes.get_ylim()
    outside = {
        ("diverged", "x", top): [point for point in points if not math.isfinite(point.metric)],
        ("above the axis", 6, top): [point for point in points if point.metric > high],
        ("below the axis", 7, bottom): [point for point in points if point.metric < low],
    }
    for (label, marker, edge), missing in outside.items():
        if missing:
            at, edges = [place[point.values[field]] for point in missing], [edge] * len(missing)
            style = {"marker": marker, "color": "#000000", "clip_on": False}
            axes.scatter(at, edges, s=36, label=label, **style)
    axes.scatter(place[best.values[field]], best.metric, s=140, facecolors="none", edgecolors="#000000", label="best")
    axes.set_xlabel(field)
    if not is_numeric:
        axes.set_xticks(range(len(written)), written)
        axes.set_xlim(-0.5, len(written) - 0.5)
        axes.tick_params("x", rotation=0 if sum(map(len, written)) <= MAX_LABEL_CHARACTERS else 90)
    elif (min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_RATIO) if is_log is None else is_log:
        set_log_scale(axes)


def _shown(metrics: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest metric that are no outliers, so that these do not hide how the others differ."""
    finite = sorted(metric for metric in metrics if math.isfinite(metric))
    if len(finite) < 2:
        return finite[0], finite[0]
    first, _, third = quantiles(finite, method="inclusive")
    reach = FENCE * (third - first)
    shown = [metric for metric in finite if first - reach <= metric <= third + reach]
    return shown[0], shown[-1]


def _number(value: str) -> float:
    """Return a value as a number; NaN if it is none."""
    try:
        return float(value)
    except ValueError:
        return math.nan
