"""Pictures of a classifier's predictions as SVG: reliability diagram and confusion matrix."""

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from transom.decoding.predictors.class_metrics import CalibrationBin
from transom.files.message import as_sentence, joined
from transom.inspection.messages.tables import message
from transom.inspection.pages.line_chart import Scale
from transom.inspection.pages.markup import node
from transom.inspection.pages.number_format import format_count, format_percent

SIZE, LEFT, TOP = 260, 54, 28
"""Width and height of the plot of a reliability diagram, and its margins, in SVG units."""

MAX_LABEL_LENGTH = 18
MAX_OPACITY = 0.45
"""Opacity of the darkest cell, on which numbers are legible in light and dark."""
CELL, CHARACTER_WIDTH = 38, 8.4
"""Width and height of a cell of a confusion matrix, and average width of a label's character, in SVG units."""


def reliability_diagram(bins: Sequence[CalibrationBin]) -> Element:
    """Draw accuracy against confidence, one bar per bin (Guo et al. 2017, figure 1); a calibrated classifier is on the diagonal.

    The tooltip of a bar shows its number of predictions, mean confidence and accuracy.
    """
    across, up = Scale(0, 1, LEFT, LEFT + SIZE), Scale(0, 1, TOP + SIZE, TOP)
    description = joined("", [joined("; ", map(_describe_bin, bins)), "."])
    width, height = LEFT + SIZE + 20, TOP + SIZE + 44
    picture = node(
        "svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        class_="reliability",
        role="img",
        aria_label=joined(" ", [message("reliability.label"), description]),
    )
    picture.append(node("title", message("reliability.title")))
    picture.append(node("desc", description))
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1):
        kind = "grid" if tick else "axis"
        picture.append(node("line", x1=LEFT, x2=LEFT + SIZE, y1=up(tick), y2=up(tick), class_=kind))
        picture.append(node("text", f"{tick:g}", x=LEFT - 8, y=up(tick), dy="0.35em", text_anchor="end"))
        picture.append(node("text", f"{tick:g}", x=across(tick), y=TOP + SIZE + 16, text_anchor="middle"))
    for each in bins:
        at = {"x": across(each.low) + 1, "y": up(each.accuracy), "width": round(across(each.high) - across(each.low) - 2, 1)}
        bar = node("rect", node("title", _describe_bin(each)), **at, height=round(up(0) - up(each.accuracy), 1), class_="cell")
        picture.append(bar)
        picture.append(node("circle", cx=across(each.confidence), cy=up(each.accuracy), r=3, class_="dot line-1"))
    picture.append(node("line", x1=across(0), x2=across(1), y1=up(0), y2=up(1), class_="mark"))
    picture.append(node("text", message("columns.confidence"), x=LEFT + SIZE, y=TOP + SIZE + 36, text_anchor="end", class_="unit"))
    picture.append(node("text", message("columns.accuracy"), x=LEFT - 8, y=12, text_anchor="middle", class_="unit"))
    return picture


def _describe_bin(each: CalibrationBin) -> str:
    accuracy, confidence = format_percent(each.accuracy, 1), format_percent(each.confidence, 1)
    return message("reliability.bin", accuracy=accuracy, confidence=confidence, n=each.n)


def confusion_matrix_svg(classes: Sequence[str], confusion: Mapping[tuple[str, str], int]) -> Element:
    """Draw a confusion matrix: rows are classes, columns are predicted classes, and a darker cell is a larger fraction of its row."""
    names = [name if len(name) <= MAX_LABEL_LENGTH else name[: MAX_LABEL_LENGTH - 1] + "…" for name in classes]
    longest = max(map(len, names))
    left, top = round(CHARACTER_WIDTH * longest) + 14, round(CHARACTER_WIDTH * 0.72 * longest) + 40
    width = left + CELL * len(classes) + round(CHARACTER_WIDTH * 0.72 * len(names[-1])) + 12
    height = top + CELL * len(classes) + 10
    title = message("confusion.title")
    picture = node(
        "svg", viewBox=f"0 0 {width} {height}", width=width, height=height, class_="confusion", role="img", aria_label=as_sentence(title)
    )
    picture.append(node("title", title))
    picture.append(node("rect", x=left, y=top, width=CELL * len(classes), height=CELL * len(classes), class_="field"))
    for k, name in enumerate(names):
        x, y = left + CELL * (k + 0.5), top - 8
        picture.append(node("text", name, x=x, y=y, transform=f"rotate(-45 {x:g} {y})", class_="symbol"))
        picture.append(node("text", name, x=left - 8, y=top + CELL * (k + 0.5), dy="0.35em", text_anchor="end", class_="symbol"))
    for row, label in enumerate(classes):
        n_row = sum(confusion.get((label, found), 0) for found in classes)
        for column, found in enumerate(classes):
            if n := confusion.get((label, found), 0):
                picture.append(_cell(left + CELL * column, top + CELL * row, n, n / n_row, label, found))
    return picture


def _cell(x: float, y: float, n: int, fraction: float, label: str, found: str) -> Element:
    cell = node(
        "rect", x=x + 1, y=y + 1, width=CELL - 2, height=CELL - 2, rx=3, fill_opacity=round(MAX_OPACITY * fraction, 3), class_="cell"
    )
    number = node("text", format_count(n), x=x + CELL / 2, y=y + CELL / 2, dy="0.35em", text_anchor="middle")
    number.set("class", "symbol")
    number.set("style", f"font-size: {12 if n < 10_000 else 9}px")
    share = format_percent(fraction, 1)
    return node("g", node("title", message("confusion.cell", label=label, found=found, number=n, fraction=share)), cell, number)
