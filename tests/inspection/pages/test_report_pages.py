"""The HTML pages in a browser: nothing is cut, broken or illegible on a phone, a tablet or a desktop, in light or dark."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Browser, ColorScheme, chromium
from tests.inspection.pages.page_kinds import KINDS
from transom.inspection.pages.report import render_report
from transom.inspection.pages.run_summary import RunSummary

pytestmark = pytest.mark.long

WIDTHS = (390, 768, 1440)
SCHEMES: tuple[ColorScheme, ...] = ("light", "dark")
LAYOUT = (Path(__file__).parent / "layout.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a browser."""
    program = chromium()
    if program is None:
        pytest.skip("needs Chromium")
    found = Browser(program)
    yield found
    found.close()


def faults(browser: Browser, page: Path) -> list[str]:
    """Describe what is wrong with a page, at each width and in each color scheme."""
    found = []
    for width in WIDTHS:
        for scheme in SCHEMES:
            browser.open(page, width, scheme)
            assert browser.evaluate(f"matchMedia('(width: {width}px)').matches")
            assert browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
            found += [f"{page.name}, {width} px, {scheme}: {fault}" for fault in browser.evaluate(LAYOUT)]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_pages_of_a_run_fit(kind: str, browser: Browser, tmp_path: Path) -> None:
    pages = list(KINDS[kind](tmp_path))
    assert [fault for page in pages for fault in faults(browser, page)] == []


def test_a_report_with_hostile_text_fits(run: RunSummary, browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_report(run), encoding="utf-8")
    assert faults(browser, page) == []


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
