"""Pictures of alignments: SVG heat maps, and shaded blocks for the terminal."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from transom.decoding.predictors.results import Alignment
from transom.files.message import joined
from transom.inspection.messages.tables import message
from transom.inspection.pages.heat_map import HeatMapText, display_width, heat_map_svg, label
from transom.inspection.pages.html_tables import scrollable
from transom.inspection.pages.markup import node
from transom.inspection.pages.number_format import format_percent
from transom.inspection.pages.page import render_page

_SHADES = " ░▒▓█"


def alignment_svg(alignment: Alignment) -> Element:
    """Draw an alignment as an SVG heat map: rows are target tokens, columns are source tokens, darker cells have more weight.

    The tooltip of a cell shows its target token, source token and weight. The description for screen readers names, for each target token,
    the source token with the largest weight.
    """
    description = joined(
        "; ",
        (
            message("alignment.from", target=aligned, source=alignment.source[position], weight=format_percent(weight))
            for aligned, (position, weight) in zip(alignment.target, _strongest_sources(alignment), strict=True)
        ),
    )
    words = HeatMapText(message("alignment.label"), message("alignment.title", origin=alignment.origin), joined("", [description, "."]))
    return heat_map_svg(alignment.weights, alignment.target, alignment.source, words)


def alignment_text(alignment: Alignment, width: int = 100) -> str:
    """Draw an alignment as text: a line per target token, shaded blocks for the weights.

    Args:
        alignment: the alignment to draw.
        width: maximum line width in columns; source tokens that do not fit are written vertically.
    """
    source, target = [label(symbol) for symbol in alignment.source], [label(symbol) for symbol in alignment.target]
    margin = max(map(display_width, target)) + 2
    cell_width = margin + sum(max(display_width(symbol), 2) + 2 for symbol in source) <= width
    widths = [max(display_width(symbol), 2) if cell_width else 2 for symbol in source]
    if cell_width:
        head = [
            " " * margin + "  ".join(symbol + " " * (size - display_width(symbol)) for symbol, size in zip(source, widths, strict=True))
        ]
    else:
        head = _vertical_labels(source, margin)
    lines = [line.rstrip() for line in head]
    for symbol, weights in zip(target, alignment.weights.tolist(), strict=True):
        cells = [_shade(weight) * size for weight, size in zip(weights, widths, strict=True)]
        lines.append((" " * (margin - 2 - display_width(symbol)) + symbol + "  " + ("  " if cell_width else " ").join(cells)).rstrip())
    key = "  ".join(f"{shade * 2} {label}" for shade, label in zip(_SHADES[1:], ("> 10%", "> 30%", "> 55%", "> 80%"), strict=True))
    return "\n".join([*lines, "", f"{key}   ({alignment.origin})"])


def _strongest_sources(alignment: Alignment) -> list[tuple[int, float]]:
    weights, positions = alignment.weights.max(-1)
    return list(zip(positions.tolist(), weights.tolist(), strict=True))


def _vertical_labels(symbols: Sequence[str], margin: int) -> list[str]:
    """Return lines with the tokens written from top to bottom in columns of width 3, aligned at the last line."""
    deepest = max(map(len, symbols))
    padded = [symbol.rjust(deepest) for symbol in symbols]
    return [" " * margin + " ".join(symbol[line] + " " * (2 - display_width(symbol[line])) for symbol in padded) for line in range(deepest)]


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
