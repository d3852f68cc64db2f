"""Messages of pages: one table per language, and texts of a page that can be shown in each of them.

``message("time.steps", n=3)`` is the English text and a string like any other; it also knows its key and its values, from which
``transom.inspection.pages.markup.node`` writes attributes that the script of a page reads to show another language.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any, Self

ENGLISH = "en"
"""The language that a page holds as text; it is shown where no script runs."""

_FILES = (file.name for file in resources.files(__package__).iterdir())

LANGUAGES = (ENGLISH, *sorted({name.removesuffix(".json") for name in _FILES if name.endswith(".json")} - {ENGLISH}))
"""Language tags of the tables in this package, English first."""

PLACEHOLDER = re.compile(r"\{(\w+)\}")
"""A value in a message, such as ``{n}``."""

Template = str | Mapping[str, str]
"""Text of a message with placeholders; one per plural category (``one``, ``other``) of the value ``n`` where the text depends on it."""

Code = Any
"""What a text is made of, as JSON: a string, a number, ``[key, values]`` for a message, ``{"join": [code, ...]}`` for a sequence."""


class Message(str):
    """English text that can be shown in other languages.

    Attributes:
        code: what the text is made of, from which ``render`` makes the text in another language.
    """

    code: Code

    def __new__(cls, english: str, code: Code) -> Self:
        """Return ``english`` as a string that knows its code."""
        made = super().__new__(cls, english)
        made.code = code
        return made


@cache
def table(language: str) -> Mapping[str, Any]:
    """Return the table of a language: ``language`` has its own name; ``report`` and ``explore`` hold templates in nested objects."""
    return dict(json.loads((resources.files(__package__) / f"{language}.json").read_text(encoding="utf-8")))


@cache
def templates(language: str, part: str = "report") -> Mapping[str, Template]:
    """Return the templates of one part of a table by key, the names of nested objects joined by dots."""
    return dict(_flatten("", table(language)[part]))


def _flatten(prefix: str, entry: Any) -> Iterator[tuple[str, Template]]:
    if isinstance(entry, str) or "other" in entry:
        yield prefix, entry
    else:
        for name, inner in entry.items():
            yield from _flatten(f"{prefix}.{name}" if prefix else name, inner)


def message(key: str, **values: str | int) -> Message:
    """Return the message of a key of the tables' ``report``.

    Args:
        key: names of nested objects, joined by dots.
        values: a value for each placeholder: text as it is shown, another message, or a number that is shown with thousands separators. The
            number ``n`` selects between singular and plural.
    """
    coded = {name: _code_of(value) for name, value in values.items()}
    code = [key, coded] if coded else [key]
    return Message(render(code, templates(ENGLISH)), code)


def message_or(key: str, otherwise: str) -> str:
    """Return the message of a key if the tables have it; else the text, such as the name that a plugin gave to a metric."""
    return message(key) if key in templates(ENGLISH) else otherwise


def joined(separator: str, parts: Iterable[str]) -> str:
    """Return ``separator.join(parts)``, as a message if any part is one.

    >>> joined(", ", ["a", "b"])
    'a, b'
    """
    every = list(parts)
    text = separator.join(every)
    if not any(isinstance(part, Message) for part in every):
        return text
    spaced = [code for part in every for code in (separator, _code_of(part))][1:]
    return Message(text, {"join": [code for code in spaced if code != ""]})


def max_length(text: str) -> int:
    """Return the number of characters of a text in the language in which it is longest."""
    return max(len(render(text.code, templates(language))) for language in LANGUAGES) if isinstance(text, Message) else len(text)


def as_sentence(text: str) -> str:
    """Return a text with a capital at its start and a period at its end."""
    english = f"{text[:1].upper()}{text[1:]}."
    return Message(english, {"join": [text.code, "."]}) if isinstance(text, Message) else english


def render(code: Code, of_language: Mapping[str, Template]) -> str:
    """Return a text in the language of the templates; plurals are those of English and German."""
    match code:
        case int():
            return f"{code:,}"
        case str():
            return code
        case {"join": parts}:
            return "".join(render(part, of_language) for part in parts)
        case [key, *rest]:
            values = rest[0] if rest else {}
            template = of_language[key]
            if not isinstance(template, str):
                template = template["one" if values["n"] == 1 else "other"]
            return PLACEHOLDER.sub(lambda found: render(values[found[1]], of_language), template)
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


def switch_data(keys: Iterable[str]) -> dict[str, Any]:
    """Return what ``switch.js`` reads: the names of all languages, and the templates of the keys in every language but English."""
    wanted = sorted(set(keys))
    return {
        "names": {language: table(language)["language"]["name"] for language in LANGUAGES},
        "label": " / ".join(table(language)["language"]["label"] for language in LANGUAGES),
        "tables": {language: {key: templates(language)[key] for key in wanted} for language in LANGUAGES if language != ENGLISH},
    }


def switch_script() -> str:
    """Return the script of a page that shows it in the language of the browser and offers the others."""
    return (resources.files(__package__) / "switch.js").read_text(encoding="utf-8")


def _code_of(value: str | int) -> Code:
    return value.code if isinstance(value, Message) else value
