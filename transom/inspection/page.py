"""The template of all pages: a header with links, sections, a footer; a page loads nothing and runs no script."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from transom.inspection.facts import Facts
from transom.inspection.markup import node, style_sheet, to_html

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy: nothing but what stands in the page."""

Part = tuple[str | None, str, Sequence[Element]]
"""A section as it is written: its anchor, None where no link leads to it, its title and its content."""


class Section(NamedTuple):
    """A section of a run's report.

    Attributes:
        anchor: what the link at the top of the page leads to.
        title: its heading.
        render: lays out its content; a section without content is left out.
    """

    anchor: str
    title: str
    render: Callable[[Facts], Sequence[Element]]


def page(
    title: str, heading: str, parts: Iterable[Part], lead: str | None = None, above: Iterable[Element] = (), footer: str | None = None
) -> str:
    """Write a page as HTML; text from data is escaped.

    Args:
        title: what a browser shows for the page.
        heading: at its top.
        parts: its sections; those without content are left out, and those with an anchor are linked to from the header.
        lead: a sentence under the heading.
        above: content before the first section.
        footer: the page's last line.
    """
    filled = [part for part in parts if part[2]]
    links = [node("a", name, href=f"#{anchor}") for anchor, name, _ in filled if anchor]
    header = node("header", node("h1", heading), node("p", lead, class_="lead") if lead else None)
    if links:
        header.append(node("nav", *links, aria_label="Sections"))
    main = node("main", *above, *(node("section", node("h2", name), *content, id=anchor) for anchor, name, content in filled))
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("meta", name="referrer", content="no-referrer"),
        node("title", title),
        style_sheet("colors", "pictures", "page"),
    )
    body = node("body", header, main, node("footer", footer) if footer else None)
    return f"<!DOCTYPE html>\n{to_html(node('html', head, body, lang='en'))}\n"
