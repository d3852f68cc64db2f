"""The view saved as one file: without a server and a network it shows the same cells, and asks for nothing."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser
from tests.serving.explore_page import SETTLE, canvases, open_page, pixels, settle, texts
from tests.serving.runs import HOSTILE, INPUTS, TARGET, serve
from tests.tiers import tiers
from transom.serving.server import ExploreServer

LAYERS = {"language": "decoder.blocks.1.attn", "translator": "decoder.blocks.1.cross", "hostile": "encoder.blocks.0.attn"}
MAPS = ("#heads canvas", "#map canvas", "#vectors canvas")


def state_of(name: str) -> dict[str, Any]:
    """Return a view of a run with a cell of the chosen row open."""
    text = INPUTS.get(name, " ".join(HOSTILE[:4]))
    index = {"n_heads": 1, "query": 2, "key": 1}
    return {
        "input": {"text": text, "target": TARGET} if name == "translator" else {"text": text},
        "place": LAYERS[name],
        "head": 1,
        "tokens": {"encoder": 2, "decoder": 2},
        "cell": {"name": f"{LAYERS[name]}.weights", "index": index},
    }


def save(browser: Browser, file: Path) -> None:
    """Save the view through the page's menu."""
    browser.page.evaluate("() => { document.querySelector('[data-focus=share]').open = true; }")
    with browser.page.expect_download(timeout=60_000) as download:
        browser.page.click("[data-share=save]")
    download.value.save_as(file)


def open_offline(browser: Browser, file: Path) -> None:
    """Open a file without a network."""
    browser.new_page(offline=True).goto(file.absolute().as_uri())
    browser.page.evaluate(SETTLE)


def seen(browser: Browser) -> dict[str, Any]:
    """Return all that a view shows: numbers and colors of each map's first cells, words, probabilities and the calculation."""
    found: dict[str, Any] = {}
    for selector in MAPS:
        maps = canvases(browser, selector)
        sides = [(range(min(each.n_rows, 4)), range(min(each.n_columns, 4))) for each in maps]
        cells = [(i, row, column) for i, (rows, columns) in enumerate(sides) for row in rows for column in columns]
        found[selector] = [maps, cells, pixels(browser, selector, cells), texts(browser, selector, cells) if selector != MAPS[0] else []]
    found["text"] = [browser.page.text_content(part) for part in ("#tokens", "#row", "#story", "#answer .bars-list", "#calculation")]
    return found


@pytest.mark.parametrize("name", tiers(["language", "translator"], long=["translator"]))
def test_the_file_shows_the_same_cells(browser: Browser, runs: dict[str, Path], name: str, tmp_path: Path) -> None:
    with serve(runs[name]) as server:
        open_page(browser, server, state_of(name))
        before = seen(browser)
        save(browser, tmp_path / "saved.html")
        save(browser, tmp_path / "again.html")
        assert browser.faults == []
    assert (tmp_path / "saved.html").read_bytes() == (tmp_path / "again.html").read_bytes()
    open_offline(browser, tmp_path / "saved.html")
    assert seen(browser) == before and before["#map canvas"][0] and before["text"][4]
    assert [url for url in browser.requests if not url.startswith(("data:", "blob:"))] == [(tmp_path / "saved.html").as_uri()]
    walk_through(browser)


def walk_through(browser: Browser) -> None:
    """Look at the places and move the sliders of a saved view, all of which it holds; what it lacks it says in its place."""
    page = browser.page
    for key in ("o", "a"):
        page.keyboard.press(key)
        settle(browser)
    page.locator("#slider-temperature").evaluate("(field) => { field.value = '2'; field.dispatchEvent(new Event('input')); }")
    for place in page.locator("[data-place]").all():
        place.click()
        settle(browser)
        assert page.locator("#stage .error").count() == 0, place.get_attribute("data-place")
    page.click(f"[data-place='{page.locator('[data-place*=attn]').last.get_attribute('data-place')}']")
    page.keyboard.press("}")
    settle(browser)
    assert "transom explore RUN" in page.locator("#stage .error").first.inner_text()
    assert len(browser.requests) == len([url for url in browser.requests if url.startswith(("data:", "blob:", "file:"))])
    assert page.evaluate("() => document.querySelectorAll('link, script[src], img[src^=http], iframe').length") <= 1, "the icon alone"


@pytest.mark.long
def test_hostile_text_in_a_file_stays_text(browser: Browser, runs: dict[str, Path], tmp_path: Path) -> None:
    """Also texts that end a script element or a comment."""
    with serve(runs["hostile"]) as server:
        open_page(browser, server, state_of("hostile"))
        before = seen(browser)
        save(browser, tmp_path / "saved.html")
    open_offline(browser, tmp_path / "saved.html")
    assert seen(browser) == before
    assert browser.page.evaluate("() => [window.hits ?? null, document.querySelectorAll('b, svg, iframe, img').length]") == [None, 0]
    html = (tmp_path / "saved.html").read_text(encoding="utf-8")
    data = re.findall(r'<script type="application/json" id="\w+">(.*?)</script>', html, re.DOTALL)
    assert len(data) >= 3 and all("<" not in each and json.loads(each) is not None for each in data)
    assert HOSTILE[0] in json.dumps([json.loads(each) for each in data], ensure_ascii=False)


QUESTIONS: list[list[Any]] = [
    ["models", {}],
    ["pass", {"input": {"text": "the cat"}, "model": 0, "edits": []}],
    ["logits", {"input": {"text": "the cat"}, "position": 3}],
]


def test_equal_requests_give_equal_files(server: ExploreServer, runs: dict[str, Path]) -> None:
    """Of two servers, in any order of fields; other states give others."""
    body = {"requests": QUESTIONS, "state": {"head": 1}, "language": "de"}
    turned = [[name, dict(reversed(fields.items()))] for name, fields in QUESTIONS]
    first = server.explorer.answer("export", body)["html"]
    with serve(runs["language"]) as other:
        assert other.explorer.answer("export", {**body, "requests": turned})["html"] == first
    assert server.explorer.answer("export", {**body, "state": {"head": 2}})["html"] != first
    kept = json.loads(re.findall(r'id="answers">(.*?)</script>', first, re.DOTALL)[0])
    assert sorted(key.partition(" ")[0] for key in kept) == ["logits", "models", "pass"]
    logits = server.explorer.answer(*QUESTIONS[2])
    assert kept['logits {"input":{"text":"the cat"},"position":3}'] == logits


def test_a_file_contacts_nobody_and_holds_all(server: ExploreServer) -> None:
    html = server.explorer.answer("export", {"requests": QUESTIONS, "state": {}})["html"]
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', html)[0]
    assert "default-src 'none'" in policy and "connect-src" not in policy and "http" not in policy
    assert server.token not in html and f":{server.server_port}" not in html
    assert not re.search(r'(?:src|href)="(?!data:)[^"#]', html), "no file beside it"
    assert "{nonce}" not in html
