"""HTML and SVG as element trees; text from data is escaped by construction."""

import unicodedata
from importlib import resources
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Child = Element | str | None
"""Content of an element; ``None`` is skipped."""

_REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"


def escape_control_characters(text: str) -> str:
    r"""Replace characters that a page or terminal would interpret: control characters, lone surrogates, bidirectional overrides.

    >>> escape_control_characters("a\x1b[31mb\tc")
    'a␛[31mb c'
    """
    return "".join(map(_escape_character, text))


def _escape_character(character: str) -> str:
    if character in "\t\n\r":
        return " "
    if ord(character) < 0x20:
        return chr(0x2400 + ord(character))
    if character == "\x7f":
        return "\N{SYMBOL FOR DELETE}"
    hidden = (
        unicodedata.category(character) in ("Cc", "Cs") or character in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufffe\uffff"
    )
    return _REPLACEMENT_CHARACTER if hidden else character


def node(tag: str, *children: Child, **attributes: str | float | None) -> Element:
    """Build an element.

    Args:
        tag: name of the element.
        children: elements and text in order; text passes through ``escape_control_characters`` and is escaped on output.
        attributes: values; ``None`` is skipped. In names ``_`` becomes ``-`` and a trailing ``_`` is dropped (``class_``).
    """
    element = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            element.set(
                name.rstrip("_").replace("_", "-"), escape_control_characters(f"{value:g}" if isinstance(value, float) else str(value))
            )
    for child in children:
        if isinstance(child, str):
            _append_text(element, escape_control_characters(child))
        elif child is not None:
            element.append(child)
    return element


def _append_text(element: Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def preformatted(text: str) -> Element:
    """Render ``text`` as a preformatted block."""
    element = node("pre")
    element.text = "\n".join(map(escape_control_characters, text.split("\n")))
    return element


def style_sheet(*names: str) -> Element:
    """Return a style element with the named style sheets of this package, whose text is not escaped."""
    element = Element("style")
    element.text = "".join(f"\n{(resources.files(__package__) / f'{name}.css').read_text('utf-8')}" for name in names)
    return element


def to_html(element: Element) -> str:
    """Serialize the element as HTML."""
    return ElementTree.tostring(element, encoding="unicode", method="html")


def to_svg(element: Element) -> str:
    """Serialize the element as a standalone SVG file."""
    element.set("xmlns", "http://www.w3.org/2000/svg")
    return ElementTree.tostring(element, encoding="unicode") + "\n"
