"""Every word of the page comes from the tables of messages; its modules and styles are found where the page says."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import transom.serving
from transom.inspection.messages.tables import ENGLISH, LANGUAGES, table, templates
from transom.inspection.names import QUANTITIES

PAGE = Path(transom.serving.__file__).parent / "page"
HTML = (PAGE / "index.html").read_text(encoding="utf-8")
SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(PAGE.glob("*.js"))}
CALL = re.compile(r"\b(?:t|rich)\(")
LITERAL = re.compile(r'"([\w-]+(?:\.[\w-]+)+|title|skip)"')
PATTERN = re.compile(r"`([\w.-]+\.)\$\{[^`]*`")
NAMES = "sqrt|scores?|tanh|mean|sum|exp|ln|eps|mu|sigma|gamma|beta|alpha|x_hat|softmax|maxout of|Concat|of a simple network"
FORMULA = re.compile(rf"(({NAMES})(_\w+)?|\b[A-Za-z](_\w+|_(?=\{{))?(?![A-Za-z])|[^A-Za-z])+")
"""Symbols and the names of functions."""
MARKUP = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
ATTRIBUTE = re.compile(r'data-(?:message|label)="([^"]+)"')


def arguments(source: str) -> list[str]:
    """Return what stands between the parentheses of each call that reads a message."""
    found = []
    for call in CALL.finditer(source):
        depth, end = 1, call.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(source[end], 0)
            end += 1
        found.append(source[call.end() : end - 1])
    return found


def keys_and_prefixes() -> tuple[set[str], set[str]]:
    """Return the keys that the page names, and the beginnings of those that it puts together."""
    keys = set(ATTRIBUTE.findall(HTML))
    prefixes = set()
    for source in SCRIPTS.values():
        for given in arguments(source):
            keys |= set(LITERAL.findall(given))
            prefixes |= set(PATTERN.findall(given))
        keys |= {key for key in LITERAL.findall(source) if key in templates(ENGLISH, "explore")}
    return {key for key in keys if key.partition(".")[0] in table(ENGLISH)["explore"]}, prefixes


def test_every_key_of_the_page_has_a_message() -> None:
    keys, prefixes = keys_and_prefixes()
    messages = templates(ENGLISH, "explore")
    assert len(keys) > 90
    assert len(prefixes) > 5
    assert not keys - set(messages)
    assert not [prefix for prefix in prefixes if not any(key.startswith(prefix) for key in messages)]


def test_every_message_is_used() -> None:
    keys, prefixes = keys_and_prefixes()
    unused = {key for key in templates(ENGLISH, "explore") if key not in keys and not any(key.startswith(prefix) for prefix in prefixes)}
    assert not {key for key in unused if not key.startswith(("languages.", "quantities."))}


def test_what_each_quantity_is_has_a_message() -> None:
    """Formulas without words need none; the page finds the others as this test does."""
    words = {row.formula.rpartition(": ")[2] for rows in QUANTITIES.values() for row in rows}
    keys = {re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"): text for text in words}
    messages = {
        key.removeprefix("quantities."): text for key, text in templates(ENGLISH, "explore").items() if key.startswith("quantities.")
    }
    assert {key: keys.get(key) for key in messages} == messages
    assert not [text for key, text in keys.items() if key not in messages and not FORMULA.fullmatch(text)]


def test_every_table_is_listed_as_a_language() -> None:
    for language in LANGUAGES:
        assert set(table(language)["explore"]["languages"]) == set(LANGUAGES)
        assert table(language)["explore"]["languages"][language] == table(language)["language"]["name"]


class _Texts(HTMLParser):
    """Collects the text of a page outside of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self._inside != "script":
            self.texts.append(data.strip())


def test_the_document_holds_no_text() -> None:
    parser = _Texts()
    parser.feed(HTML)
    assert parser.texts == ["transom"], "besides the name, which the message of the title replaces"


def test_modules_are_imported_by_names_that_the_page_maps() -> None:
    mapped = json.loads(re.search(r'<script type="importmap"[^>]*>(.*?)</script>', HTML, re.DOTALL)[1])["imports"]  # type: ignore[index]
    assert set(mapped.values()) == {f"./{name}" for name in SCRIPTS}
    imported = {name for source in SCRIPTS.values() for name in re.findall(r'from "([^"]+)"', source)}
    assert imported <= set(mapped)
    assert set(mapped) - imported == {"explore/app"}


def test_the_page_is_small_and_its_files_are_short() -> None:
    assert sum(len(source.encode()) for source in SCRIPTS.values()) <= 200_000
    files = {**SCRIPTS, **{path.name: path.read_text(encoding="utf-8") for path in PAGE.glob("*.css")}}
    assert {name: source.count("\n") for name, source in files.items() if source.count("\n") > 300} == {}


def test_nothing_in_the_modules_makes_markup_of_text() -> None:
    for name, source in SCRIPTS.items():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setTimeout\(\s*[\"'`]", source
        ), name
