"""Words of a page that are neither a message, a number nor data: such a word stays English in every language."""

import re
from collections.abc import Container, Iterator
from html.parser import HTMLParser

from transom.files.message import Code, render
from transom.inspection.messages.tables import ENGLISH, templates
from transom.inspection.pages.markup import MESSAGE, MESSAGE_ATTRIBUTES, decode

SHOWN_ATTRIBUTES = ("aria-label", "alt", "title", "data-label", "placeholder", "label")
"""Attributes that a reader sees or hears."""

UNTRANSLATED = {"pre", "code", "style", "script"}
"""Elements whose text is code, or from a recipe or from data, unless it is a message."""

UNITS = re.compile(r"(?<=\d)(k|M|G)?\b|\b(s|min|h|ms|MB|nan|inf)\b|\d[\d.]*e-?\d+")
"""Units and exponents, which are the same in every language."""

ADDRESS = re.compile(r"\S*/\S+|\b[\w-]+(\.[\w-]+)+")
"""Dotted names: layers, files, fields of a recipe."""

WORD = re.compile(r"[A-Za-z]{2,}")


class Words(HTMLParser):
    """The texts of a page.

    Attributes:
        messages: of each message its code, its text in the page, and where it is shown.
        others: every other text, the literal parts of messages included.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.messages: list[tuple[Code, str, str]] = []
        self.others: list[str] = []
        self._open: list[tuple[str, Code]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        codes = decode(found.get(MESSAGE_ATTRIBUTES, "{}"))
        for name in SHOWN_ATTRIBUTES:
            if name in codes:
                self._add_message(codes[name], found[name], name)
            elif name in found:
                self.others.append(found[name])
        if tag != "meta" and tag != "img":
            self._open.append((tag, decode(found[MESSAGE]) if MESSAGE in found else None))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        if not self._open:
            return
        code = self._open[-1][1]
        if code is not None:
            self._add_message(code, data, "text")
        elif not UNTRANSLATED & {tag for tag, _ in self._open}:
            self.others.append(data)

    def _add_message(self, code: Code, text: str, where: str) -> None:
        self.messages.append((code, text, where))
        self.others.extend(_literals(code))

    def untranslated(self, data: Container[str] = ()) -> set[str]:
        """Return the words outside of messages that are neither units, addresses nor among the words of the data."""
        return {
            word
            for text in self.others
            for word in WORD.findall(UNITS.sub("", ADDRESS.sub("", text)))
            if word not in data and len(set(word)) > 1
        }

    def misquoted(self) -> list[tuple[str, str]]:
        """Return each English text of a message that is not what its code says, but for a capital at its start, with that text."""
        english = templates(ENGLISH)
        pairs = [(text, render(code, english)) for code, text, _ in self.messages]
        return [(text, said) for text, said in pairs if text[1:] != said[1:] or text[:1].lower() != said[:1].lower()]


def _literals(code: Code) -> Iterator[str]:
    match code:
        case str():
            yield code
        case {"join": parts}:
            for part in parts:
                yield from _literals(part)
        case [_, values]:
            for value in values.values():
                yield from _literals(value)
