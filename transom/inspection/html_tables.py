"""HTML tables."""

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from transom.inspection.markup import node

_NUMERIC = frozenset("0123456789,.-+ %e")


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Element:
    """Render rows under column headings; columns of numbers are right-aligned."""
    numeric = [all(set(row[column]) <= _NUMERIC for row in rows) for column in range(len(columns))]
    kinds = ["number" if is_number else "text" for is_number in numeric]
    head = node("tr", *(node("th", name, scope="col", class_=kind) for name, kind in zip(columns, kinds, strict=True)))
    body = (node("tr", *(node("td", cell, class_=kind, dir="auto") for cell, kind in zip(row, kinds, strict=True))) for row in rows)
    return node("table", node("thead", head), node("tbody", *body))


def key_value_table(rows: Iterable[tuple[str, str]]) -> Element:
    """Render a table of names and values."""
    listed = list(rows)
    kind = "number" if all(set(value) <= _NUMERIC for _, value in listed) else "text"
    return node(
        "table",
        node("tbody", *(node("tr", node("th", name, scope="row"), node("td", value, class_=kind, dir="auto")) for name, value in listed)),
    )


def scrollable(element: Element) -> Element:
    """Wrap an element so that it scrolls horizontally when it is wider than the page."""
    return node("div", element, class_="scroll")
