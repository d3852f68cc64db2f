"""Pictures of alignments: SVG heat maps, and shaded blocks for the terminal."""

import unicodedata
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from transom.decoding.predictors.results import Alignment
from transom.files.message import joined
from transom.inspection.messages.tables import message
from transom.inspection.pages.html_tables import scrollable
from transom.inspection.pages.markup import escape_control_characters, node
from transom.inspection.pages.number_format import format_percent
from transom.inspection.pages.page import render_page

MIN_SHOWN_WEIGHT = 0.01
"""Cells with a smaller attention weight are not drawn."""
_SHADES = " ░▒▓█"
_CHARACTER_WIDTH = 9.0
"""Average width of a label's character, in SVG units."""
_MAX_LABEL_LENGTH = 18
_LEGEND_STEPS = 5
_LEGEND_START = 76


def alignment_svg(alignment: Alignment) -> Element:
    """Draw an alignment as an SVG heat map: rows are target tokens, columns are source tokens, darker cells have more weight.

    The tooltip of a cell shows its target token, source token and weight. The description for screen readers names, for each target token,
    the source token with the largest weight.
    """
    source, target = [_label(symbol) for symbol in alignment.source], [_label(symbol) for symbol in alignment.target]
    cell_width, cell_height = 30 if len(source) <= 20 else 24, 30 if len(target) <= 20 else 22
    left = round(max(map(_drawn_width, target))) + 14
    top = round(0.72 * max(map(_drawn_width, source))) + 34
    columns_width = cell_width * len(source) + round(0.72 * _drawn_width(source[-1])) + 12
    width = left + max(columns_width, _LEGEND_START + 16 * _LEGEND_STEPS + 20)
    height = top + cell_height * len(target) + 40
    description = joined(
        "; ",
        (
            message("alignment.from", target=aligned, source=alignment.source[position], weight=format_percent(weight))
            for aligned, (position, weight) in zip(alignment.target, _strongest_sources(alignment), strict=True)
        ),
    )
    picture = node(
        "svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        class_="alignment",
        role="img",
        aria_label=joined(" ", [message("alignment.label"), joined("", [description, "."])]),
    )
    picture.append(node("title", message("alignment.title", origin=alignment.origin)))
    picture.append(node("desc", joined("", [description, "."])))
    picture.append(node("rect", x=left, y=top, width=cell_width * len(source), height=cell_height * len(target), class_="field"))
    for column, symbol in enumerate(source):
        x, y = left + cell_width * (column + 0.5), top - 8
        picture.append(node("text", symbol, x=x, y=y, transform=f"rotate(-45 {x:g} {y})", class_="symbol"))
    for row, symbol in enumerate(target):
        picture.append(node("text", symbol, x=left - 8, y=top + cell_height * (row + 0.5), dy="0.35em", text_anchor="end", class_="symbol"))
        picture.extend(_heat_map_row(alignment, row, left, top + cell_height * row, cell_width, cell_height))
    picture.extend(_legend(left, top + cell_height * len(target) + 16))
    return picture


def alignment_text(alignment: Alignment, width: int = 100) -> str:
    """Draw an alignment as text: a line per target token, shaded blocks for the weights.

    Args:
        alignment: the alignment to draw.
        width: maximum line width in columns; source tokens that do not fit are written vertically.
    """
    source, target = [_label(symbol) for symbol in alignment.source], [_label(symbol) for symbol in alignment.target]
    margin = max(map(_display_width, target)) + 2
    cell_width = margin + sum(max(_display_width(symbol), 2) + 2 for symbol in source) <= width
    widths = [max(_display_width(symbol), 2) if cell_width else 2 for symbol in source]
    if cell_width:
        head = [
            " " * margin + "  ".join(symbol + " " * (size - _display_width(symbol)) for symbol, size in zip(source, widths, strict=True))
        ]
    else:
        head = _vertical_labels(source, margin)
    lines = [line.rstrip() for line in head]
    for symbol, weights in zip(target, alignment.weights.tolist(), strict=True):
        cells = [_shade(weight) * size for weight, size in zip(weights, widths, strict=True)]
        lines.append((" " * (margin - 2 - _display_width(symbol)) + symbol + "  " + ("  " if cell_width else " ").join(cells)).rstrip())
    key = "  ".join(f"{shade * 2} {label}" for shade, label in zip(_SHADES[1:], ("> 10%", "> 30%", "> 55%", "> 80%"), strict=True))
    return "\n".join([*lines, "", f"{key}   ({alignment.origin})"])


def _label(symbol: str) -> str:
    shown = escape_control_characters(symbol)
    return shown if len(shown) <= _MAX_LABEL_LENGTH else shown[: _MAX_LABEL_LENGTH - 1] + "…"


def _display_width(text: str) -> int:
    """Return the display width of ``text`` in terminal columns."""
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text) or 1


def _drawn_width(text: str) -> float:
    """Return the approximate width of ``text`` in SVG units; symbols, as for control characters, are wider than letters."""
    n_symbols = sum(unicodedata.category(character) == "So" for character in text)
    return _CHARACTER_WIDTH * (_display_width(text) + 0.7 * n_symbols)


def _strongest_sources(alignment: Alignment) -> list[tuple[int, float]]:
    weights, positions = alignment.weights.max(-1)
    return list(zip(positions.tolist(), weights.tolist(), strict=True))


def _heat_map_row(alignment: Alignment, row: int, left: float, top: float, cell_width: int, cell_height: int) -> list[Element]:
    cells = []
    for column, weight in enumerate(alignment.weights[row].tolist()):
        if weight >= MIN_SHOWN_WEIGHT:
            explanation = node("title", f"{alignment.target[row]} ← {alignment.source[column]}: {format_percent(weight, 1)}")
            position = {"x": left + cell_width * column + 1, "y": top + 1, "width": cell_width - 2, "height": cell_height - 2, "rx": 3}
            cells.append(node("rect", explanation, **position, fill_opacity=round(min(weight, 1.0), 3), class_="cell"))
    return cells


def _legend(left: float, top: float) -> list[Element]:
    elements = [node("text", joined("  ", [message("alignment.weight"), "0"]), x=left, y=top + 6, dy="0.35em", class_="unit")]
    start = left + _LEGEND_START
    for step in range(_LEGEND_STEPS):
        fraction = (step + 1) / _LEGEND_STEPS
        elements.append(node("rect", x=start + 16 * step, y=top, width=15, height=12, rx=2, fill_opacity=fraction, class_="cell"))
    elements.append(node("text", "1", x=start + 16 * _LEGEND_STEPS + 6, y=top + 6, dy="0.35em", class_="unit"))
    return elements


def _vertical_labels(symbols: Sequence[str], margin: int) -> list[str]:
    """Return lines with the tokens written from top to bottom in columns of width 3, aligned at the last line."""
    deepest = max(map(len, symbols))
    padded = [symbol.rjust(deepest) for symbol in symbols]
    return [
        " " * margin + " ".join(symbol[line] + " " * (2 - _display_width(symbol[line])) for symbol in padded) for line in range(deepest)
    ]


def _shade(weight: float) -> str:
    return _SHADES[sum(weight > limit for limit in (0.1, 0.3, 0.55, 0.8))]


def alignment_page(name: str, alignments: Sequence[tuple[str, str, Alignment]]) -> str:
    """Render alignments as an HTML page.

    Args:
        name: name of the run.
        alignments: each source sentence with its translation and their alignment.
    """
    title = message("alignment.page", name=name)
    parts = [
        (None, source, [node("p", translation), scrollable(alignment_svg(alignment)), node("p", alignment.origin, class_="soft")])
        for source, translation, alignment in alignments
    ]
    return render_page(title, title, parts, lead=message("alignment.lead"))
