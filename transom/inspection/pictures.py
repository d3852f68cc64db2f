"""Pictures of alignments: SVG heat maps, and shaded blocks for the terminal."""

import unicodedata
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from transom.decoding.predictors.results import Alignment
from transom.inspection.figures import percent
from transom.inspection.markup import node, visible

LEAST_SHOWN = 0.01
"""Cells of smaller weights are not drawn."""
_SHADES = " ░▒▓█"
_CHARACTER = 8.4
"""Average width of a label's character, in SVG units."""
_LONGEST_LABEL = 18
_LEGEND_STEPS = 5


def alignment_picture(alignment: Alignment) -> Element:
    """Draw an alignment as an SVG heat map: rows are target tokens, columns are source tokens, darker cells have more weight.

    Cells show their tokens and weight as tooltips. The text description names the source token with the largest weight per target token.
    """
    source, target = [_label(symbol) for symbol in alignment.source], [_label(symbol) for symbol in alignment.target]
    across, down = 30 if len(source) <= 20 else 24, 30 if len(target) <= 20 else 22
    left = round(_CHARACTER * max(map(_columns, target))) + 14
    top = round(_CHARACTER * 0.72 * max(map(_columns, source))) + 34
    width = left + across * len(source) + round(_CHARACTER * 0.72 * _columns(source[-1])) + 12
    height = top + down * len(target) + 40
    spoken = "; ".join(
        f"{aligned} from {alignment.source[place]} ({percent(weight)})"
        for aligned, (place, weight) in zip(alignment.target, _strongest(alignment), strict=True)
    )
    picture = node(
        "svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        class_="alignment",
        role="img",
        aria_label=f"Alignment. {spoken}.",
    )
    picture.append(node("title", f"Which source words each target word attends to ({alignment.origin})"))
    picture.append(node("desc", f"{spoken}."))
    picture.append(node("rect", x=left, y=top, width=across * len(source), height=down * len(target), class_="field"))
    for column, symbol in enumerate(source):
        x, y = left + across * (column + 0.5), top - 8
        picture.append(node("text", symbol, x=x, y=y, transform=f"rotate(-45 {x:g} {y})", class_="symbol"))
    for row, symbol in enumerate(target):
        picture.append(node("text", symbol, x=left - 8, y=top + down * (row + 0.5), dy="0.35em", text_anchor="end", class_="symbol"))
        picture.extend(_row(alignment, row, left, top + down * row, across, down))
    picture.extend(_legend(left, top + down * len(target) + 16))
    return picture


def alignment_text(alignment: Alignment, width: int = 100) -> str:
    """Draw an alignment as text: a line per target token, shaded blocks for the weights.

    Args:
        alignment: the alignment to draw.
        width: maximum line width in columns; source tokens that do not fit are written vertically.
    """
    source, target = [_label(symbol) for symbol in alignment.source], [_label(symbol) for symbol in alignment.target]
    margin = max(map(_columns, target)) + 2
    across = margin + sum(max(_columns(symbol), 2) + 2 for symbol in source) <= width
    widths = [max(_columns(symbol), 2) if across else 2 for symbol in source]
    if across:
        head = [" " * margin + "  ".join(symbol + " " * (size - _columns(symbol)) for symbol, size in zip(source, widths, strict=True))]
    else:
        head = _downwards(source, margin)
    lines = [line.rstrip() for line in head]
    for symbol, weights in zip(target, alignment.weights.tolist(), strict=True):
        cells = [_shade(weight) * size for weight, size in zip(weights, widths, strict=True)]
        lines.append((" " * (margin - 2 - _columns(symbol)) + symbol + "  " + ("  " if across else " ").join(cells)).rstrip())
    key = "  ".join(f"{shade * 2} {label}" for shade, label in zip(_SHADES[1:], ("> 10 %", "> 30 %", "> 55 %", "> 80 %"), strict=True))
    return "\n".join([*lines, "", f"{key}   ({alignment.origin})"])


def _label(symbol: str) -> str:
    shown = visible(symbol)
    return shown if len(shown) <= _LONGEST_LABEL else shown[: _LONGEST_LABEL - 1] + "…"


def _columns(text: str) -> int:
    """Return the display width of ``text`` in terminal columns."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text) or 1


def _strongest(alignment: Alignment) -> list[tuple[int, float]]:
    weights, places = alignment.weights.max(-1)
    return list(zip(places.tolist(), weights.tolist(), strict=True))


def _row(alignment: Alignment, row: int, left: float, top: float, across: int, down: int) -> list[Element]:
    cells = []
    for column, weight in enumerate(alignment.weights[row].tolist()):
        if weight >= LEAST_SHOWN:
            told = node("title", f"{alignment.target[row]} ← {alignment.source[column]}: {percent(weight, 1)}")
            place = {"x": left + across * column + 1, "y": top + 1, "width": across - 2, "height": down - 2, "rx": 3}
            cells.append(node("rect", told, **place, fill_opacity=round(min(weight, 1.0), 3), class_="cell"))
    return cells


def _legend(left: float, top: float) -> list[Element]:
    elements = [node("text", "weight  0", x=left, y=top + 6, dy="0.35em", class_="unit")]
    start = left + 66
    for step in range(_LEGEND_STEPS):
        share = (step + 1) / _LEGEND_STEPS
        elements.append(node("rect", x=start + 16 * step, y=top, width=15, height=12, rx=2, fill_opacity=share, class_="cell"))
    elements.append(node("text", "1", x=start + 16 * _LEGEND_STEPS + 6, y=top + 6, dy="0.35em", class_="unit"))
    return elements


def _downwards(symbols: Sequence[str], margin: int) -> list[str]:
    """Write the tokens vertically in columns of width 3, aligned at the bottom."""
    deepest = max(map(len, symbols))
    padded = [symbol.rjust(deepest) for symbol in symbols]
    return [" " * margin + " ".join(symbol[line] + " " * (2 - _columns(symbol[line])) for symbol in padded) for line in range(deepest)]


def _shade(weight: float) -> str:
    return _SHADES[sum(weight > limit for limit in (0.1, 0.3, 0.55, 0.8))]
