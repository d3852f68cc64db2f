"""The HTML pages in a browser: nothing is cut, broken or illegible on a phone, a tablet or a desktop, in light or dark, in any language."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.browser import Browser, ColorScheme, chromium
from tests.inspection.pages.page_kinds import KINDS
from tests.inspection.pages.page_words import Words
from tests.inspection.test_explain_words import NOTATION
from transom.files.message import render
from transom.inspection.messages.tables import templates
from transom.inspection.pages.report import render_report
from transom.inspection.pages.run_summary import RunSummary

pytestmark = pytest.mark.long

EACH_CI = ("translation", "language", "classes", "images", "sounds")
"""Kinds of runs that `make ci` looks at; `make soak` looks at the others."""

VIEWS: tuple[tuple[int, ColorScheme], ...] = ((390, "light"), (390, "dark"), (768, "light"), (768, "dark"), (1440, "light"), (1440, "dark"))
LAYOUT = (Path(__file__).parent / "layout.js").read_text(encoding="utf-8")


def started(languages: str) -> Iterator[Browser]:
    """Start the browser of a user who reads some languages."""
    program = chromium()
    if program is None:
        pytest.skip("needs Chromium")
    found = Browser(program, languages)
    yield found
    found.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a browser."""
    yield from started("en-US,en")


@pytest.fixture(scope="module")
def german_browser() -> Iterator[Browser]:
    """Start the browser of a user who reads Dutch, which no table has, and German."""
    yield from started("nl,de-AT,en")


def faults(browser: Browser, page: Path, views: Sequence[tuple[int, ColorScheme]] = VIEWS) -> list[str]:
    """Describe what is wrong with a page in windows of some widths and color schemes."""
    found = []
    for width, scheme in views:
        browser.open(page, width, scheme)
        assert browser.evaluate(f"matchMedia('(width: {width}px)').matches")
        assert browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
        found += [f"{page.name}, {width} px, {scheme}: {fault}" for fault in browser.evaluate(LAYOUT)]
    return found


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind in EACH_CI else pytest.mark.soak) for kind in KINDS])
def test_pages_of_a_run_fit_and_have_no_untranslated_word(kind: str, browser: Browser, german_browser: Browser, tmp_path: Path) -> None:
    """Boxes depend on the width and the language, colors on the scheme: each is seen, the hostile report in all their combinations."""
    pages = list(KINDS[kind](tmp_path))
    views: list[tuple[int, ColorScheme]] = [(390, "light"), (768, "light"), (1440, "dark")]
    assert [fault for page in pages for fault in faults(browser, page, views)] == []
    for page in pages:
        words = Words(page.read_text(encoding="utf-8"))
        symbols = (*NOTATION, *BYTES) if page.name == "calculation.html" else ()
        assert words.misquoted() == []
        assert words.untranslated({*NAMES, *symbols, *re.findall(r"\w+", " ".join(map(str, pages)))}) == set()
        assert faults(german_browser, page, [(390, "light")]) == []
        assert shown(german_browser, words) == expected(words, "de")


NAMES = re.findall(
    r"\w+",
    "EOS SOS MASK torch cpu fp digits without fold synthesized sounds train valid test tone rising falling noise vowel window size"
    " linear elu relu performer features exact fused explicit",
)
"""Names that are the same in all languages: special tokens, built-in data and classes, methods of attention, fields of recipes."""

BYTES = {word for byte in range(256) for word in re.findall("[A-Za-z]{2,}", f"0x{byte:02X}")}
"""Letters in the names of tokens of single bytes, such as <0xEB>."""

TEXTS = """[...document.querySelectorAll('[data-message], [data-message-attributes]')].flatMap((e) => [
  ...Object.keys(JSON.parse((e.dataset.messageAttributes || '{}').replace(/["']/g, (q) => (q === '"' ? "'" : '"'))))
    .filter((name) => %s.includes(name)).map((name) => e.getAttribute(name)),
  ...(e.dataset.message ? [e.textContent] : [])])"""


def shown(browser: Browser, words: Words) -> list[str]:
    """Return the messages that the open page shows, those of an element's attributes before its text."""
    names = json.dumps([where for where in dict.fromkeys(where for _, _, where in words.messages) if where != "text"])
    return list(browser.evaluate(TEXTS % names))


def expected(words: Words, language: str) -> list[str]:
    """Return the messages of a page in a language, computed from their codes."""
    return [render(code, templates(language)) for code, _, _ in words.messages]


def test_a_report_with_hostile_text_fits(run: RunSummary, browser: Browser, german_browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_report(run), encoding="utf-8")
    assert faults(browser, page) == []
    assert faults(german_browser, page) == []


def test_a_report_has_the_language_of_the_browser_and_offers_the_others(
    run: RunSummary, browser: Browser, german_browser: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_report(run), encoding="utf-8")
    words = Words(page.read_text(encoding="utf-8"))
    english = [text for _, text, _ in words.messages]
    state = "[document.documentElement.lang, document.title, document.querySelector('select').value, document.scripts.length]"
    choose = "(() => {{ const s = document.querySelector('select'); s.value = '{}'; s.dispatchEvent(new Event('change')); }})()"
    browser.open(page, 1440, "light")
    assert browser.evaluate(state) == ["en", "multi30k-en-de: training report", "en", 2] and shown(browser, words) == english
    browser.evaluate(choose.format("de"))
    assert browser.evaluate(state)[:2] == ["de", "multi30k-en-de: Trainingsbericht"] and shown(browser, words) == expected(words, "de")
    browser.evaluate(choose.format("en"))
    assert browser.evaluate(state)[:2] == ["en", "multi30k-en-de: training report"] and shown(browser, words) == english
    german_browser.open(page, 390, "light")
    assert german_browser.evaluate("navigator.languages") == ["nl", "de-AT", "en"]
    assert german_browser.evaluate(state) == ["de", "multi30k-en-de: Trainingsbericht", "de", 2]
    assert shown(german_browser, words) == expected(words, "de")
    assert german_browser.evaluate("[...document.querySelectorAll('option')].map((e) => e.lang + ' ' + e.text)") == [
        "en English",
        "de Deutsch",
    ]
    assert german_browser.evaluate("document.querySelectorAll('img').length + document.querySelectorAll('b, i, a:not(nav a)').length") == 0


def test_other_scripts_are_blocked(run: RunSummary, browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_report(run).replace("</body>", "<script>document.title = 'other'</script></body>"), encoding="utf-8")
    browser.open(page, 1440, "light")
    assert browser.evaluate("document.title") == "multi30k-en-de: training report"


FAULTY = """<!DOCTYPE html><meta charset=utf-8><meta name=viewport content="width=device-width"><body style="margin: 0">
<p style="color: #999; background: white">pale</p>
<p style="width: 40px; overflow-wrap: anywhere">unbreakable</p>
<p style="width: 2000px">wide</p>
<p style="font-size: 6px">tiny</p>
<p style="width: 60px; overflow: hidden; white-space: nowrap">cut at its right end</p>
<svg width=100 height=40><text x=0 y=20>one</text><text x=5 y=22>two</text></svg>"""


def test_a_faulty_page_is_seen(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "faulty.html"
    page.write_text(FAULTY, encoding="utf-8")
    found = "\n".join(faults(browser, page))
    for what in (
        "390 px, light: the page is 2000 px wide",
        "sticks out: p wide",
        "contrast 2.85: p pale",
        "broken word unbreakable",
        "text of 6.0 px: p tiny",
        "content wider than its box: p cut at",
        "labels overlap: one and two",
    ):
        assert what in found
