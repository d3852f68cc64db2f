"""SVG heat maps whose rows and columns are tokens."""

import math
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from jaxtyping import Float
from torch import Tensor

from transom.files.message import joined
from transom.inspection.messages.tables import message
from transom.inspection.pages.markup import node, shorten
from transom.inspection.pages.number_format import format_weight

_CHARACTER_WIDTH = 9.0
"""Average width of a label's character, in SVG units."""
_MAX_LABEL_LENGTH = 18
_LEGEND_STEPS = 5
_LEGEND_START = 76


class HeatMapText(NamedTuple):
    """The words of a heat map, which may be messages.

    Attributes:
        name: what the picture is, as a sentence: the start of its text alternative.
        title: its title.
        description: its text alternative: what it shows, in words.
    """

    name: str
    title: str
    description: str


def root_opacity(weight: float) -> float:
    """Return the square root of a weight as the opacity of its cell: small weights remain visible."""
    return math.sqrt(min(max(weight, 0.0), 1.0))


def heat_map_svg(
    weights: Float[Tensor, "row column"],
    rows: Sequence[str],
    columns: Sequence[str],
    words: HeatMapText,
    opacity: Callable[[float], float] = lambda weight: min(max(weight, 0.0), 1.0),
) -> Element:
    """Draw weights from 0 to 1 as an SVG heat map; the tooltip of a cell shows its row, its column and its weight.

    Args:
        weights: the weights.
        rows: name of each row.
        columns: name of each column.
        words: title and text alternative.
        opacity: opacity of a cell, from 0 to 1, by its weight.
    """
    across, down = [label(symbol) for symbol in columns], [label(symbol) for symbol in rows]
    cell_width, cell_height = 30 if len(across) <= 20 else 24, 30 if len(down) <= 20 else 22
    left = round(max(map(_drawn_width, down))) + 14
    top = round(0.72 * max(map(_drawn_width, across))) + 34
    columns_width = cell_width * len(across) + round(0.72 * _drawn_width(across[-1])) + 12
    width = left + max(columns_width, _LEGEND_START + 16 * _LEGEND_STEPS + 20)
    height = top + cell_height * len(down) + 40
    picture = node(
        "svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        class_="alignment",
        role="img",
        aria_label=joined(" ", [words.name, words.description]),
    )
    picture.append(node("title", words.title))
    picture.append(node("desc", words.description))
    picture.append(node("rect", x=left, y=top, width=cell_width * len(across), height=cell_height * len(down), class_="field"))
    for column, symbol in enumerate(across):
        x, y = left + cell_width * (column + 0.5), top - 8
        picture.append(node("text", symbol, x=x, y=y, transform=f"rotate(-45 {x:g} {y})", class_="symbol"))
    for row, symbol in enumerate(down):
        picture.append(node("text", symbol, x=left - 8, y=top + cell_height * (row + 0.5), dy="0.35em", text_anchor="end", class_="symbol"))
        for column, weight in enumerate(weights[row].tolist()):
            explanation = node("title", f"{rows[row]} ← {columns[column]}: {format_weight(weight)}")
            at = {"x": left + cell_width * column + 1, "y": top + cell_height * row + 1, "width": cell_width - 2, "rx": 3}
            shade = round(opacity(weight), 3)
            picture.append(node("rect", explanation, **at, height=cell_height - 2, fill_opacity=shade, class_="cell"))
    picture.extend(_legend(left, top + cell_height * len(down) + 16, opacity))
    return picture


def small_map_svg(weights: Float[Tensor, "row column"], rows: Sequence[str], columns: Sequence[str], name: str, side: int = 150) -> Element:
    """Draw weights from 0 to 1 as a heat map of about ``side`` units without labels; each cell has a tooltip.

    Args:
        weights: the weights.
        rows: name of each row.
        columns: name of each column.
        name: what the map shows: its text alternative.
        side: longest side of the map.
    """
    cell = side / max(weights.shape)
    width, height = round(cell * weights.shape[1]), round(cell * weights.shape[0])
    picture = node(
        "svg", viewBox=f"0 0 {len(columns)} {len(rows)}", width=width, height=height, class_="small", role="img", aria_label=name
    )
    picture.append(node("rect", x=0, y=0, width=len(columns), height=len(rows), class_="field"))
    for i, row in enumerate(weights.tolist()):
        for j, weight in enumerate(row):
            explanation = node("title", f"{rows[i]} ← {columns[j]}: {format_weight(weight)}")
            shade = round(root_opacity(weight), 3)
            picture.append(node("rect", explanation, x=j, y=i, width=1, height=1, fill_opacity=shade, class_="cell"))
    return picture


def label(symbol: str) -> str:
    """Shorten a token for display."""
    return shorten(symbol, _MAX_LABEL_LENGTH)


def display_width(text: str) -> int:
    """Return the display width of ``text`` in terminal columns."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text) or 1


def _drawn_width(text: str) -> float:
    """Return the approximate width of ``text`` in SVG units; symbols, as for control characters, are wider than letters."""
    n_symbols = sum(unicodedata.category(character) == "So" for character in text)
    return _CHARACTER_WIDTH * (display_width(text) + 0.7 * n_symbols)


def _legend(left: float, top: float, opacity: Callable[[float], float]) -> list[Element]:
    """Draw the shades of weights from 0 to 1: those whose opacities are equally far apart, with the weight of the middle one."""
    elements = [node("text", joined("  ", [message("alignment.weight"), "0"]), x=left, y=top + 6, dy="0.35em", class_="unit")]
    start = left + _LEGEND_START
    for step in range(_LEGEND_STEPS):
        weight = (step + 1) / _LEGEND_STEPS
        elements.append(
            node("rect", x=start + 16 * step, y=top, width=15, height=12, rx=2, fill_opacity=round(opacity(weight), 3), class_="cell")
        )
    elements.append(node("text", "1", x=start + 16 * _LEGEND_STEPS + 6, y=top + 6, dy="0.35em", class_="unit"))
    return elements
