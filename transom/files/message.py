"""Text that people read in English and that pages can show in other languages: it knows its key and its values."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

PLACEHOLDER = re.compile(r"\{(\w+)\}")
"""A value in a template, such as ``{n}``."""

Template = str | Mapping[str, str]
"""Text of a message with placeholders; one per plural category (``one``, ``other``) of the value ``n`` where the text depends on it."""

Code = Any
"""Parts of a text, as JSON: a string, a number, ``[key, values]`` for a message, ``{"join": [code, ...]}`` for a sequence."""


class Message(str):
    """English text that can be shown in other languages.

    Attributes:
        code: its parts, from which ``render`` makes the text in another language.
    """

    code: Code

    def __new__(cls, english: str, code: Code) -> Self:
        """Return ``english`` as a string that knows its code."""
        made = super().__new__(cls, english)
        made.code = code
        return made


def phrase(key: str, english: Template, **values: str | int) -> str:
    """Return a ``Message`` in English, which other languages have under ``key`` of ``transom/inspection/messages``.

    Args:
        key: names of nested objects of a table, joined by dots.
        english: the English text with placeholders.
        values: a value for each placeholder: text as it is shown, another message, or a number that is shown with thousands separators. The
            number ``n`` selects between singular and plural.

    >>> phrase("data.count.text", {"one": "{n} text", "other": "{n} texts"}, n=1200)
    '1,200 texts'
    """
    coded = {name: code_of(value) for name, value in values.items()}
    code = [key, coded] if coded else [key]
    shown = {name: f"{value:,}" if isinstance(value, int) else value for name, value in values.items()}
    return Message(_fill(english, shown, values), code)


def joined(separator: str, parts: Iterable[str]) -> str:
    """Return ``separator.join(parts)``, as a message if any part is one.

    >>> joined(", ", ["a", "b"])
    'a, b'
    """
    every = list(parts)
    text = separator.join(every)
    if not any(isinstance(part, Message) for part in every):
        return text
    spaced = [code for part in every for code in (separator, code_of(part))][1:]
    return Message(text, {"join": [code for code in spaced if code != ""]})


def replaced(text: str, old: str, new: str) -> str:
    """Return ``text.replace(old, new)``, as a message if the text is one, in whose values the part is replaced too."""
    return Message(text.replace(old, new), _replaced(text.code, old, new)) if isinstance(text, Message) else text.replace(old, new)


def _replaced(code: Code, old: str, new: str) -> Code:
    match code:
        case str():
            return code.replace(old, new)
        case {"join": parts}:
            return {"join": [_replaced(part, old, new) for part in parts]}
        case [key, values]:
            return [key, {name: _replaced(value, old, new) for name, value in values.items()}]
    return code


def as_sentence(text: str) -> str:
    """Return a text with a capital at its start and a period at its end."""
    english = f"{text[:1].upper()}{text[1:]}."
    return Message(english, {"join": [text.code, "."]}) if isinstance(text, Message) else english


def render(code: Code, templates: Mapping[str, Template]) -> str:
    """Return a text in the language of the templates, with the plurals of English and German."""
    match code:
        case int():
            return f"{code:,}"
        case str():
            return code
        case {"join": parts}:
            return "".join(render(part, templates) for part in parts)
        case [key, *rest]:
            values = rest[0] if rest else {}
            return _fill(templates[key], {name: render(value, templates) for name, value in values.items()}, values)
    raise AssertionError(f"no code of a text: {code!r}")


def keys_of(code: Code) -> Iterator[str]:
    """Yield the keys of the messages of which a text is made."""
    match code:
        case {"join": parts}:
            for part in parts:
                yield from keys_of(part)
        case [key, *rest]:
            yield key
            for value in rest[0].values() if rest else ():
                yield from keys_of(value)


def code_of(value: str | int) -> Code:
    """Return the code of a value."""
    return value.code if isinstance(value, Message) else value


def _fill(template: Template, shown: Mapping[str, str], values: Mapping[str, Any]) -> str:
    text = template if isinstance(template, str) else template["one" if values["n"] == 1 else "other"]
    return PLACEHOLDER.sub(lambda found: shown[found[1]], text)
