"""HTML tables that fit on a phone: those with long texts are stacked there, one row below the other; all others scroll."""

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from transom.inspection.pages.markup import node

_NUMERIC = frozenset("0123456789,.-+ %e–")

MAX_SCROLLED_CHARACTERS = 40
"""A table with a longer cell is stacked on a phone."""

MAX_ROWS = 40
"""A longer table scrolls vertically, so that it does not hide what follows."""


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Element:
    """Render rows under column headings; columns of numbers are right-aligned."""
    numeric = [all(set(row[column]) <= _NUMERIC for row in rows) for column in range(len(columns))]
    kinds = ["number" if is_number else "text" for is_number in numeric]
    head = node("tr", *(node("th", name, scope="col", class_=kind) for name, kind in zip(columns, kinds, strict=True)))
    cells = [list(zip(row, kinds, columns, strict=True)) for row in rows]
    body = (node("tr", *(node("td", cell, class_=kind, dir="auto", data_label=name or None) for cell, kind, name in row)) for row in cells)
    is_long = any(len(cell) > MAX_SCROLLED_CHARACTERS for row in rows for cell in row)
    table = node("table", node("thead", head), node("tbody", *body), class_="stacked" if is_long else None)
    return scrollable(table, is_tall=len(rows) > MAX_ROWS)


def key_value_table(rows: Iterable[tuple[str, str]]) -> Element:
    """Render a table of names and values."""
    listed = list(rows)
    kind = "number" if all(set(value) <= _NUMERIC for _, value in listed) else "text"
    return scrollable(
        node(
            "table",
            node(
                "tbody", *(node("tr", node("th", name, scope="row"), node("td", value, class_=kind, dir="auto")) for name, value in listed)
            ),
        )
    )


def scrollable(element: Element, is_tall: bool = False) -> Element:
    """Wrap an element so that it scrolls horizontally when it is wider than the page and, if ``is_tall``, vertically."""
    return node("div", element, class_="scroll tall" if is_tall else "scroll", tabindex=0)
