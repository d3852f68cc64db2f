"""Template of all HTML pages: header with links, sections, footer. Pages load no resources; their one script shows another language."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from transom.files.message import Message, keys_of
from transom.inspection.messages.tables import message, switch_data, switch_script
from transom.inspection.pages.markup import codes_of, node, script, style_sheet, to_html, without_codes
from transom.inspection.pages.run_summary import RunSummary

_CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Content security policy of a page: it may use inline styles and images in data URLs; ``render_page`` adds its one script."""

SectionContent = tuple[str | None, str, Sequence[Element]]
"""A rendered section: anchor (None for a section without a link), title, content."""


class Section(NamedTuple):
    """A section of a training report.

    Attributes:
        anchor: target of the link in the page's header.
        title: heading.
        render: builds the content; sections without content are omitted.
    """

    anchor: str
    title: str
    render: Callable[[RunSummary], Sequence[Element]]


def render_page(
    title: str,
    heading: str,
    parts: Iterable[SectionContent],
    lead: str | None = None,
    above: Iterable[Element] = (),
    footer: str | None = None,
    styles: Sequence[str] = (),
) -> str:
    """Render an HTML page; text from data is escaped.

    Args:
        title: the document title; if it is a message, all words of the page are, and the page has the script that shows other languages.
        heading: the top heading.
        parts: sections; those without content are omitted, those with an anchor are linked from the header.
        lead: a sentence below the heading.
        above: content before the first section.
        footer: the last line of the page.
        styles: names of further style sheets of this package.
    """
    filled = [part for part in parts if part[2]]
    links = [node("a", name, href=f"#{anchor}") for anchor, name, _ in filled if anchor]
    header = node("header", node("h1", heading), node("p", lead, class_="lead") if lead else None)
    if links:
        header.append(node("nav", *links, aria_label=message("page.sections")))
    main = node("main", *above, *(node("section", node("h2", name), *content, id=anchor) for anchor, name, content in filled))
    body = node("body", header, main, node("footer", footer) if footer else None)
    document_title = node("title", title)
    policy = _CONTENT_SECURITY_POLICY
    if isinstance(title, Message):
        keys = {key for part in (document_title, body) for code in codes_of(part) for key in keys_of(code)}
        data = json.dumps(switch_data(keys), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        body.extend([script(data, type="application/json", class_="messages"), script(switch_script())])
        policy += f"; script-src 'sha256-{base64.b64encode(hashlib.sha256(switch_script().encode()).digest()).decode()}'"
    else:
        without_codes(body)
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", http_equiv="Content-Security-Policy", content=policy),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("meta", name="referrer", content="no-referrer"),
        document_title,
        style_sheet("colors", "pictures", "page", *styles),
    )
    return f"<!DOCTYPE html>\n{to_html(node('html', head, body, lang='en'))}\n"
