"""Scripts and markup in inputs, tokens, classes, samples, names of folders and files, edits and addresses stay text."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.browser import Browser
from tests.serving.explore_page import move_to, open_page, settle
from tests.serving.runs import HOSTILE, picture, serve
from transom.serving.server import PAGE, ExploreServer

pytestmark = pytest.mark.long

FOLDER = "<img src=x onerror=alert(1)> ';alert(2) \"><svg onload=alert(3)>"


@pytest.fixture(scope="module")
def hostile(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExploreServer]:
    """Serve a run whose tokens, classes, samples and folder are scripts."""
    folder = tmp_path_factory.mktemp("hostile") / FOLDER
    shutil.copytree(runs["hostile"], folder)
    record = {"step": 4, "kind": "validation", "samples": [{"text": text, "class": text} for text in HOSTILE[:12]]}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n", encoding="utf-8")
    with serve(folder) as server:
        yield server


ELEMENTS = """() => {
    const all = [...document.querySelectorAll("*")];
    const source = ["src", "href", "action", "formaction", "srcdoc", "data", "xlink:href"];
    const allowed = (value) => /^(data:image\\/png;base64,|data:,|blob:|#|[a-z-]+\\.(js|css)$)/.test(value);
    const names = ["IFRAME", "OBJECT", "EMBED", "BASE", "FRAME", "FORM", "LINK", "META", "SCRIPT", "STYLE", "TEMPLATE"];
    const count = Object.fromEntries(names.map((name) => [name, all.filter((each) => each.tagName.toUpperCase() === name).length]));
    const isWrong = ({name, value}) => name.startsWith("on") || (name === "style" && /url|expression/i.test(value))
        || (source.includes(name) && !allowed(value));
    const wrong = all.flatMap((each) => [...each.attributes].filter(isWrong).map(({name, value}) => `${each.tagName} ${name}=${value}`));
    const foreign = all.filter((each) => /^(b|svg|marquee|img)$/i.test(each.tagName) && !each.hasAttribute("alt")).length;
    return {wrong, count, hits: window.hits ?? null, foreign};
}"""


def check(browser: Browser, usual: Any, server: ExploreServer) -> None:
    """Check that the page has no elements, handlers, dialogs or requests that texts could have made."""
    found = browser.page.evaluate(ELEMENTS)
    assert found == usual
    assert browser.faults == []
    files = {each.name for each in PAGE.iterdir()} | {"", "messages/en.json", "messages/de.json"}
    for url in browser.requests:
        path = urlsplit(url).path.removeprefix(f"/{server.token}/")
        assert url.startswith(("data:", "blob:")) or path in files or path.startswith("api/"), url


def usual_elements(browser: Browser, server: ExploreServer) -> Any:
    """Open the page with a harmless text; return what there is to be counted."""
    open_page(browser, server, {"input": {"text": "ship"}})
    usual = browser.page.evaluate(ELEMENTS)
    assert usual["wrong"] == [] and usual["hits"] is None
    return usual


def test_there_are_fifty_texts() -> None:
    assert len(set(HOSTILE)) >= 50


def test_texts_in_inputs_and_tokens_stay_text(browser: Browser, hostile: ExploreServer) -> None:
    usual = usual_elements(browser, hostile)
    layer = "encoder.blocks.0.attn"
    for number, text in enumerate(HOSTILE):
        views: list[dict[str, Any]] = [
            {"place": layer, "cell": {"name": f"{layer}.weights", "index": {"n_heads": 0, "query": 1, "key": 1}}},
            {"place": "output"},
            {"place": "embedding", "cell": {"name": "embedding.token", "index": {"query": 1, "d_model": 0}}},
            {"place": "heads", "tour": number % 12},
        ]
        move_to(browser, {"input": {"text": text}, "language": "en", **views[number % 4 if number % 3 == 0 else 1]})
        assert browser.page.input_value("#text") == text
        chips = browser.page.locator(".chip-text").all_inner_texts()
        known = text in hostile.explorer.models[0].run.tokenizer.symbols(hostile.explorer.models[0].run.encode(text))
        assert (text in chips) == known, (text, chips)
        check(browser, usual, hostile)


def test_classes_samples_and_folders_stay_text(browser: Browser, hostile: ExploreServer) -> None:
    usual = usual_elements(browser, hostile)
    move_to(browser, {"input": {"text": HOSTILE[0]}, "place": "output", "language": "en"})
    assert FOLDER in browser.page.inner_text("h1") and hostile.explorer.models[0].symbols()[0] in HOSTILE
    shown = browser.page.locator(".probability .token").all_inner_texts()
    assert any(each.startswith(("<script>", "<img/")) for each in shown)
    browser.page.locator(".samples button").first.click()
    settle(browser)
    assert browser.page.input_value("#text") == HOSTILE[0]
    for kind in ("python", "command", "link"):
        browser.page.evaluate("(kind) => document.querySelector(`[data-share=${kind}]`).click()", kind)
    check(browser, usual, hostile)


def test_edits_and_addresses_stay_text(browser: Browser, hostile: ExploreServer) -> None:
    """Also fields of the address that no page writes; what the server refuses is told as text."""
    usual = usual_elements(browser, hostile)
    for text in HOSTILE[::5]:
        edit = {"kind": "patch", "name": "encoder.blocks.0.resid_post", "positions": [0], "text": text}
        move_to(browser, {"input": {"text": "ship"}, "edits": [edit], "place": text, "theme": text, "tokens": {text: 1}, "language": "en"})
        assert text[:30] in browser.page.inner_text(".edits"), "long texts are shortened"
        check(browser, usual, hostile)


def test_names_of_files_stay_text(browser: Browser, runs: dict[str, Path], tmp_path: Path) -> None:
    content = picture(tmp_path / "picture.png").read_bytes()
    with serve(runs["pictures"]) as server:
        open_page(browser, server, {})
        usual = browser.page.evaluate(ELEMENTS)
        assert usual["wrong"] == []
        for name in [*HOSTILE[:12], FOLDER, "../../a.png"]:
            browser.page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": content})
            settle(browser)
            check(browser, usual, server)
        planted = """() => {
            document.body.insertAdjacentHTML("beforeend", "<p onclick=alert(1)>x</p>");
            document.body.lastElementChild.click();  // some versions of Chromium refuse a handler only when it would run
        }"""
        with browser.page.expect_console_message(lambda message: "inline event handler" in message.text):
            browser.page.evaluate(planted)
        with pytest.raises(AssertionError):
            check(browser, usual, server)
        assert len(browser.faults) == 1, "the planted handler"
        browser.faults.clear()
