"""HTML and SVG as element trees, so that text from data is escaped by construction."""

import unicodedata
from importlib import resources
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Child = Element | str | None
"""What an element may hold; ``None`` is left out."""

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def visible(text: str) -> str:
    r"""Replace what a page or a terminal would obey instead of show: control characters, lone surrogates and bidirectional overrides.

    >>> visible("a\x1b[31mb\tc")
    'a␛[31mb c'
    """
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character in "\t\n\r":
        return " "
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))
    if character == "\x7f":
        return "\N{SYMBOL FOR DELETE}"
    hidden = (
        unicodedata.category(character) in ("Cc", "Cs") or character in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff"
    )
    return _REPLACEMENT if hidden else character


def node(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """Build an element.

    Args:
        tag: name of the element.
        children: elements and text, in order; text is made ``visible`` and, when written, escaped.
        attributes: values; ``None`` leaves one out, ``_`` in a name becomes ``-`` and a closing ``_`` falls away (``class_``).
    """
    element = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            element.set(name.rstrip("_").replace("_", "-"), visible(f"{value:g}" if isinstance(value, float) else str(value)))
    for child in children:
        if isinstance(child, str):
            _append_text(element, visible(child))
        elif child is not None:
            element.append(child)
    return element


def _append_text(element: Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def preformatted(text: str) -> Element:
    """Show ``text`` line by line in a fixed-width block."""
    element = node("pre")
    element.text = "\n".join(map(visible, text.split("\n")))
    return element


def style_sheet(*names: str) -> Element:
    """Carry style sheets of this package, by name; they are written unescaped, so that text from data never stands in them."""
    element = Element("style")
    element.text = "".join(f"\n{(resources.files(__package__) / f'{name}.css').read_text('utf-8')}" for name in names)
    return element


def to_html(element: Element) -> str:
    """Write the element as HTML."""
    return ElementTree.tostring(element, encoding="unicode", method="html")


def to_svg(element: Element) -> str:
    """Write the element as an SVG file of its own."""
    element.set("xmlns", "http://www.w3.org/2000/svg")
    return ElementTree.tostring(element, encoding="unicode") + "\n"
