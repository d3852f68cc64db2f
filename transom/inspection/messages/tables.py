"""Tables of the messages of pages, one per language, and the script that shows a page in each of them.

``message("time.steps")`` is the English text and a string like any other; it also knows its key and its values, from which
``transom.inspection.pages.markup.node`` writes attributes that the script of a page reads to show another language.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

from transom.files.message import Message, Template, phrase, render

ENGLISH = "en"
"""The language that a page holds as text; it is shown where no script runs."""

_FILES = (file.name for file in resources.files(__package__).iterdir())

LANGUAGES = (ENGLISH, *sorted({name.removesuffix(".json") for name in _FILES if name.endswith(".json")} - {ENGLISH}))
"""Language tags of the tables in this package, English first."""


@cache
def table(language: str) -> Mapping[str, Any]:
    """Return the table of a language: ``language`` has its own name; the other parts hold nested templates."""
    return dict(json.loads((resources.files(__package__) / f"{language}.json").read_text(encoding="utf-8")))


@cache
def templates(language: str, part: str | None = None) -> Mapping[str, Template]:
    """Return the templates of one part of a table by key, the names of nested objects joined by dots.

    Without a part, those that Python code shows: of ``report``, and of ``explain`` and ``errors`` with keys that begin with these words.
    """
    if part is None:
        spoken = (dict(_flatten(name, table(language)[name])) for name in ("explain", "errors"))
        return {name: text for part in (templates(language, "report"), *spoken) for name, text in part.items()}
    return dict(_flatten("", table(language)[part]))


def _flatten(prefix: str, entry: Any) -> Iterator[tuple[str, Template]]:
    if isinstance(entry, str) or "other" in entry:
        yield prefix, entry
    else:
        for name, inner in entry.items():
            yield from _flatten(f"{prefix}.{name}" if prefix else name, inner)


def message(key: str, **values: str | int) -> str:
    """Return the ``Message`` of a key of the tables.

    Args:
        key: names of nested objects of ``report``, joined by dots; those of ``explain`` begin with ``explain.``.
        values: a value for each placeholder, as ``transom.files.message.phrase`` has it.
    """
    return phrase(key, templates(ENGLISH)[key], **values)


def message_or(key: str, otherwise: str) -> str:
    """Return the message of a key if the tables have it; else the text, such as the name that a plugin gave to a metric."""
    return message(key) if key in templates(ENGLISH) else otherwise


def max_length(text: str) -> int:
    """Return the number of characters of a text in the language in which it is longest."""
    return max(len(render(text.code, templates(language))) for language in LANGUAGES) if isinstance(text, Message) else len(text)


def in_language(content: Any, language: str) -> Any:
    """Return JSON-serializable content with each of its messages in a language."""
    match content:
        case Message():
            return str(content) if language == ENGLISH else render(content.code, templates(language))
        case dict():
            return {name: in_language(each, language) for name, each in content.items()}
        case list() | tuple():
            return [in_language(each, language) for each in content]
    return content


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
