"""HTML and SVG as element trees; text from data is escaped by construction, and messages carry what they are made of."""

import json
import unicodedata
from collections.abc import Iterator
from importlib import resources
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from transom.files.message import Code, Message

Child = Element | str | None
"""Content of an element; ``None`` is skipped."""

MESSAGE, MESSAGE_ATTRIBUTES = "data-message", "data-message-attributes"
"""Attributes of an element with the code of its text, and with the codes of other attributes by name."""

_QUOTES = str.maketrans("\"'", "'\"")
"""Exchanges both kinds of quotes, so that JSON in an attribute needs no escapes."""

_REPLACEMENT_CHARACTER = "\N{REPLACEMENT CHARACTER}"


def escape_control_characters(text: str) -> str:
    r"""Replace characters that a page or terminal would interpret: control characters, lone surrogates, bidirectional overrides.

    >>> escape_control_characters("a\x1b[31mb\tc")
    'a␛[31mb c'
    """
    return "".join(map(_escape_character, text))


def shorten(text: str, most: int) -> str:
    """Return a text on one line as it is shown: control characters replaced, and its end by an ellipsis if it has more than ``most``.

    >>> shorten("a longer  text", 10), shorten("dog", 10)
    ('a longer …', 'dog')
    """
    line = " ".join(escape_control_characters(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


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
        children: elements and text in order; text passes through ``escape_control_characters`` and is escaped on output. A message among
            other children has an element of its own.
        attributes: values; ``None`` is skipped. In names ``_`` becomes ``-`` and a trailing ``_`` is dropped (``class_``).
    """
    element, codes = Element(tag), dict[str, Code]()
    for key, value in attributes.items():
        if value is not None:
            name = key.rstrip("_").replace("_", "-")
            element.set(name, escape_control_characters(f"{value:g}" if isinstance(value, float) else str(value)))
            if isinstance(value, Message):
                codes[name] = value.code
    if codes:
        element.set(MESSAGE_ATTRIBUTES, _encode(codes))
    present = [child for child in children if child is not None]
    for child in present:
        if not isinstance(child, str):
            element.append(child)
        elif not isinstance(child, Message):
            _append_text(element, escape_control_characters(child))
        elif len(present) > 1:
            element.append(node("tspan" if tag == "text" else "span", child))
        else:
            element.set(MESSAGE, _encode(child.code))
            element.text = escape_control_characters(child)
    return element


def _encode(code: Code) -> str:
    text = json.dumps(_escape_code(code), ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").translate(_QUOTES)


def _escape_code(code: Code) -> Code:
    """Escape the control characters of each text in a code."""
    match code:
        case str():
            return escape_control_characters(code)
        case list():
            return [_escape_code(part) for part in code]
        case dict():
            return {name: _escape_code(part) for name, part in code.items()}
        case _:
            return code


def codes_of(element: Element) -> Iterator[Code]:
    """Yield the code of every message in an element and those below it."""
    for each in element.iter():
        if (text := each.get(MESSAGE)) is not None:
            yield decode(text)
        yield from decode(each.get(MESSAGE_ATTRIBUTES, "{}")).values()


def decode(attribute: str) -> Code:
    """Return the code, or the codes by name, that an attribute of a message holds."""
    return json.loads(attribute.translate(_QUOTES))


def without_codes(element: Element) -> Element:
    """Remove the codes of messages, which only the script of a page reads."""
    for each in element.iter():
        for name in (MESSAGE, MESSAGE_ATTRIBUTES):
            each.attrib.pop(name, None)
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


def script(text: str, **attributes: str) -> Element:
    """Return a script element, whose text is not escaped."""
    assert "</" not in text, "would end the element"
    element = node("script", **attributes)
    element.text = text
    return element


def to_html(element: Element) -> str:
    """Serialize the element as HTML."""
    return ElementTree.tostring(element, encoding="unicode", method="html")


def to_svg(element: Element) -> str:
    """Serialize the element as a standalone SVG file, in English."""
    element.set("xmlns", "http://www.w3.org/2000/svg")
    return ElementTree.tostring(without_codes(element), encoding="unicode") + "\n"
