"""Line charts as SVG: axes, legend, and hover values without scripts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element

from transom.files.message import joined
from transom.inspection.messages.tables import max_length, message
from transom.inspection.pages.markup import node, style_sheet, to_svg
from transom.inspection.pages.number_format import format_compact, format_count, linear_ticks, log_ticks, tick_labels

WIDTH, HEIGHT = 520, 280
LEFT, RIGHT, TOP, BOTTOM = 54, 498, 34, 222
ROW_HEIGHT = 20
"""Height of a row of the legend or of the hover values above the plot."""
CHARACTER_WIDTH = 10.0
"""Average width of a character at the largest font size of the style sheet, in SVG units."""
MAX_POINTS = 160
MAX_PROBES = 60
N_STYLES = 4
"""Number of line styles in the style sheet; further lines reuse them."""
LOG_SCALE_RATIO = 5.0
"""The y axis is logarithmic if all values are positive and the ratio of maximum to minimum exceeds this."""
MIN_MAGNITUDE = 1e-290
"""A minimum or maximum of smaller magnitude counts as zero on the y axis, since ticks would underflow."""


@dataclass(frozen=True)
class Line:
    """A named series of (x, y) points sorted by x; non-finite points leave a gap."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Bucket:
    """Adjacent points drawn as one: their mean and range."""

    x: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Scale:
    """A map, linear or logarithmic, from values between ``low`` and ``high`` to coordinates between ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return round(self.start + (at - low) / ((high - low) or 1.0) * (self.end - self.start), 1)


def line_chart(
    title: str,
    lines: Sequence[Line],
    x_label: str | None = None,
    mark: tuple[float, str] | None = None,
    from_zero: bool = False,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    x_log: bool = False,
) -> Element:
    """Draw lines on shared axes.

    A line of more than ``MAX_POINTS`` points is drawn through the means of buckets of adjacent points, on a band from the minimum to the
    maximum of each bucket.

    Args:
        title: quantity on the y axis with its unit; the description for screen readers adds each line's first, last and extreme values.
        lines: at least one line with at least one finite point.
        x_label: quantity on the x axis; by default the step.
        mark: an x value to highlight, and its label.
        from_zero: start the y axis at zero.
        x_range: ends of the x axis, so that charts can share it; by default the first and last x.
        y_range: values that the y axis covers at least.
        x_log: whether the x axis is logarithmic, with a tick at each x; all x must be positive.
    """
    x_label = message("charts.step") if x_label is None else x_label
    drawn = [(style % N_STYLES, line.name, buckets) for style, line in enumerate(lines) if any(buckets := _buckets(line.points))]
    finite = [bucket for _, _, buckets in drawn for bucket in buckets if bucket is not None]
    assert finite, f"no finite point to draw in {title!r}"
    x_values = [*(x_range or ()), *(x for line in lines for x, _ in _finite_points(line.points))]
    y_values = [*(y_range or ()), *(y for bucket in finite for y in (bucket.low, bucket.high))]
    low, high = (0.0 if abs(y) < MIN_MAGNITUDE else y for y in (min(y_values), max(y_values)))
    log = not from_zero and low > 0 and high / low > LOG_SCALE_RATIO
    ticks = log_ticks(low, high) if log else linear_ticks(min(low, 0) if from_zero else low, high)
    y = Scale(ticks[0], ticks[-1], BOTTOM, TOP, log)
    x = Scale(min(x_values), max(x_values), max(LEFT, CHARACTER_WIDTH * max(map(len, tick_labels(ticks))) + 8), RIGHT, x_log)
    description, legend = _text_description(lines, x_label), _legend([(style, name) for style, name, _ in drawn])
    readouts = _hover_readouts(drawn, x, y, x_label)
    n_rows = max(len({text.get("y") for text in group.iter("text")}) for group in (legend, *readouts))
    more, label = ROW_HEIGHT * (n_rows - 1), joined(" ", [joined("", [title, "."]), description])
    picture = node("svg", viewBox=f"0 {-more} {WIDTH} {HEIGHT + more}", class_="chart", role="img", aria_label=label)
    picture.extend([node("title", title), node("desc", description), *_axes(x, y, _x_ticks(x, x_values), ticks, x_label)])
    if mark is not None and x.low <= mark[0] <= x.high:
        picture.extend(_vertical_marker(x(mark[0]), mark[1]))
    for style, _, buckets in drawn:
        picture.extend(_curve(buckets, x, y, style))
    if len(drawn) > 1:
        picture.append(legend)
    picture.extend(readouts)
    return picture


def chart_svg_file(chart: Element) -> str:
    """Render a chart as a standalone SVG file that follows the light or dark color scheme."""
    chart.insert(0, style_sheet("colors", "pictures"))
    return to_svg(chart)


def _finite_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _buckets(points: Sequence[tuple[float, float]]) -> list[Bucket | None]:
    size = math.ceil(len(points) / MAX_POINTS) or 1
    buckets: list[Bucket | None] = []
    for start in range(0, len(points), size):
        chunk = _finite_points(points[start : start + size])
        values = [y for _, y in chunk]
        buckets.append(
            Bucket(sum(x for x, _ in chunk) / len(chunk), sum(values) / len(values), min(values), max(values)) if chunk else None
        )
    return buckets


def _text_description(lines: Sequence[Line], x_label: str) -> str:
    sentences = []
    for line in lines:
        points = _finite_points(line.points)
        if points:
            (first, at_first), (last, at_last) = points[0], points[-1]
            low, high = min(y for _, y in points), max(y for _, y in points)
            sentences.append(
                message(
                    "charts.course",
                    line=line.name,
                    x=x_label,
                    first=format_compact(at_first),
                    start=format_count(first),
                    last=format_compact(at_last),
                    end=format_count(last),
                    low=format_compact(low),
                    high=format_compact(high),
                )
            )
    return joined(" ", sentences)


def _x_ticks(x: Scale, values: Sequence[float]) -> list[float]:
    """Return round numbers; on a logarithmic axis the values themselves."""
    if x.log or x.high == x.low:
        return sorted(set(values))
    return [tick for tick in linear_ticks(x.low, x.high) if x.low <= tick <= x.high]


def _axes(x: Scale, y: Scale, x_ticks: Sequence[float], ticks: Sequence[float], x_label: str) -> list[Element]:
    elements = []
    for tick, label in zip(ticks, tick_labels(ticks), strict=True):
        elements.append(node("line", x1=x.start, x2=RIGHT, y1=y(tick), y2=y(tick), class_="axis" if tick == ticks[0] else "grid"))
        elements.append(node("text", label, x=x.start - 8, y=y(tick), dy="0.35em", text_anchor="end"))
    for tick, label in zip(x_ticks, tick_labels(x_ticks), strict=True):
        elements.append(node("line", x1=x(tick), x2=x(tick), y1=BOTTOM, y2=BOTTOM + 4, class_="axis"))
        elements.append(node("text", label, x=x(tick), y=BOTTOM + 26, text_anchor="middle"))
    elements.append(node("text", x_label, x=RIGHT, y=HEIGHT - 6, text_anchor="end", class_="unit"))
    return elements


def _vertical_marker(at: float, label: str) -> list[Element]:
    left = at > (LEFT + RIGHT) / 2
    return [
        node("line", x1=at, x2=at, y1=TOP, y2=BOTTOM, class_="mark"),
        node("text", label, x=at + (-5 if left else 5), y=TOP + 12, text_anchor="end" if left else "start", class_="unit"),
    ]


def _curve(buckets: Sequence[Bucket | None], x: Scale, y: Scale, style: int) -> list[Element]:
    elements = []
    for segment in _segments(buckets):
        if any(bucket.high > bucket.low for bucket in segment):
            upper = [f"{x(bucket.x)},{y(bucket.high)}" for bucket in segment]
            lower = [f"{x(bucket.x)},{y(bucket.low)}" for bucket in reversed(segment)]
            elements.append(node("polygon", points=" ".join(upper + lower), class_=f"band line-{style}"))
        elements.append(
            node("polyline", points=" ".join(f"{x(bucket.x)},{y(bucket.mean)}" for bucket in segment), class_=f"curve line-{style}")
        )
        if len(segment) <= MAX_PROBES // 2:
            elements.extend(node("circle", cx=x(bucket.x), cy=y(bucket.mean), r=2.5, class_=f"dot line-{style}") for bucket in segment)
    return elements


def _segments(buckets: Sequence[Bucket | None]) -> list[list[Bucket]]:
    segments: list[list[Bucket]] = [[]]
    for bucket in buckets:
        if bucket is None:
            segments.append([])
        else:
            segments[-1].append(bucket)
    return [segment for segment in segments if segment]


def _legend(names: Sequence[tuple[int, str]]) -> Element:
    group, rows = node("g", class_="legend"), _pack([name for _, name in names], RIGHT - LEFT, 50)
    styles = iter(style for style, _ in names)
    for y, row in zip(_row_positions(len(rows)), rows, strict=True):
        at = float(LEFT)
        for name, style in zip(row, styles, strict=False):
            group.append(node("line", x1=at, x2=at + 20, y1=y, y2=y, class_=f"curve line-{style}"))
            group.append(node("text", name, x=at + 26, y=y, dy="0.35em"))
            at += 50 + CHARACTER_WIDTH * max_length(name)
    return group


def _pack(words: Sequence[str], width: float, space: float) -> list[list[str]]:
    """Distribute words over rows of at most ``width``, each word with ``space`` beside it; a longer word has a row of its own."""
    rows, left = list[list[str]](), 0.0
    for word in words:
        needed = space + CHARACTER_WIDTH * max_length(word)
        if not rows or needed > left:
            rows.append([])
            left = width
        rows[-1].append(word)
        left -= needed
    return rows


def _row_positions(n: int) -> list[int]:
    """Return the y of ``n`` rows above the plot, from the top."""
    return [14 - ROW_HEIGHT * (n - 1 - row) for row in range(n)]


def _hover_readouts(drawn: Sequence[tuple[int, str, list[Bucket | None]]], x: Scale, y: Scale, x_label: str) -> list[Element]:
    """Return invisible vertical strips, each of which shows the values of all lines at its x while the pointer is over it."""
    solid = [(style, name, [b for b in buckets if b is not None]) for style, name, buckets in drawn]
    longest = max((buckets for _, _, buckets in solid), key=len)
    every = math.ceil(len(longest) / MAX_PROBES)
    x_values = sorted({x(bucket.x): bucket.x for bucket in longest[::every]}.items())
    edges = [x.start, *((a + b) / 2 for (a, _), (b, _) in pairwise(x_values)), float(RIGHT)]
    probes = []
    for (at, value), (start, end) in zip(x_values, pairwise(edges), strict=True):
        probe = node("g", node("rect", x=start, y=0, width=round(end - start, 1), height=BOTTOM, class_="strip"), class_="probe")
        shown, words = node("g", class_="shown"), [joined(" ", [x_label, format_count(value)])]
        shown.append(node("line", x1=at, x2=at, y1=TOP, y2=BOTTOM, class_="rule"))
        for style, name, buckets in solid:
            closest = min(buckets, key=lambda bucket: abs(bucket.x - value))
            shown.append(node("circle", cx=x(closest.x), cy=y(closest.mean), r=3.5, class_=f"dot line-{style}"))
            elsewhere = [] if format_count(closest.x) == format_count(value) else [message("charts.at", x=format_count(closest.x))]
            words.append(joined(" ", [*([name] if len(solid) > 1 else []), format_compact(closest.mean), *elsewhere]))
        rows = _pack(words, RIGHT, 3 * CHARACTER_WIDTH)
        for y_row, row in zip(_row_positions(len(rows)), rows, strict=True):
            shown.append(node("text", joined("  ·  ", row), x=RIGHT, y=y_row, dy="0.35em", text_anchor="end", class_="readout"))
        probe.append(shown)
        probes.append(probe)
    return probes
