"""From the address to a cell's calculation, an edit, a saved file, the tour and another language, with keys alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

import transom
from tests.browser import Browser
from tests.serving.explore_page import is_shown, open_page, settle
from transom.serving.server import ExploreServer

pytestmark = pytest.mark.long

FOCUS = """() => {
    const at = document.activeElement;
    const style = getComputedStyle(at);
    const box = at.getBoundingClientRect();
    const seen = box.width > 0 && box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth;
    const ring = (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1) || style.boxShadow !== "none";
    const name = `${at.tagName.toLowerCase()}#${at.id} ${at.dataset.focus ?? ""} ${at.className}`;
    const isBody = at === document.body;
    return {name, isBody, fault: isBody || (seen && ring) ? null : `${seen ? "no ring" : "out of sight"}: ${name}`};
}"""
"""The focused element, and what keeps a reader from seeing that it is."""


class Keyboard:
    """Presses keys, and looks at the focus after each."""

    def __init__(self, browser: Browser) -> None:
        """Start on an open page."""
        self.browser = browser

    def press(self, *keys: str) -> None:
        """Press keys, waiting for the page after each."""
        for key in keys:
            self.browser.page.keyboard.press(key)
            settle(self.browser)
            focus = self.browser.page.evaluate(FOCUS)
            assert focus["fault"] is None, f"after {key}: {focus['fault']}"

    def tab_to(self, selector: str, most: int = 150) -> None:
        """Press Tab until an element of a selector has the focus."""
        for _ in range(most):
            self.press("Tab")
            if self.browser.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"{most} tabs do not lead to {selector}")

    def read(self, selector: str) -> str:
        """Return the text of an element."""
        return self.browser.page.inner_text(selector)


def test_everything_can_be_done_with_keys(browser: Browser, server: ExploreServer, tmp_path: Path) -> None:
    open_page(browser, server, {})
    keys, page = Keyboard(browser), browser.page
    keys.press("Tab")
    assert page.evaluate("() => document.activeElement.matches('.skip')"), "the first stop skips to the content"
    keys.press("/")
    page.keyboard.press("Control+a")
    page.keyboard.type("the dog sees")
    keys.press("Enter")
    assert page.locator(".chip").count() == len("the dog sees") + 1

    keys.tab_to(".chip")
    keys.press("Home", "ArrowRight", "ArrowRight", "ArrowRight")
    assert page.evaluate("() => document.activeElement.dataset.position") == "3"
    keys.press("a")
    keys.tab_to("[data-attention='decoder.blocks.1.attn'][data-head='2']")
    keys.press("Enter")
    keys.tab_to("#map canvas")
    keys.press("ArrowDown", "ArrowDown", "Home", "ArrowRight")
    told = keys.read("#announcement")
    keys.press("Enter")
    name = keys.read("#calculation .cell-name")
    index = dict(part.split("=") for part in name.partition("[")[2].rstrip("]").split(", "))
    run: Any = transom.load(server.explorer.models[0].folder, "fp32")
    weights = transom.trace(run, "the dog sees", ["decoder.blocks.1.attn.weights"])[1]["decoder.blocks.1.attn.weights"]
    value = weights[0, 2, int(index["query"]), int(index["key"])]
    assert index["n_heads"] == "2" and torch.tensor(float(keys.read("#calculation .cell-value"))) == value
    assert is_shown(told.split()[-1], value.item()), "the cursor's cell is said aloud"
    keys.tab_to("#calculation [data-copy=python]")
    keys.press("Enter")
    assert "transom.trace" in page.evaluate("() => navigator.clipboard.readText()")
    keys.press("Escape")
    assert page.locator("#calculation").is_hidden()

    best = page.locator(".probability").first
    symbol, probability = best.get_attribute("data-symbol"), best.get_attribute("data-value")
    keys.press("e")
    assert page.locator(".edits li").count() == 1
    assert page.inner_text(f".probability[data-symbol='{symbol}'] .old") == probability
    keys.press("b")
    assert page.locator(".edits li").count() == 0

    keys.tab_to("[data-focus=share-summary]", most=200)
    keys.press("Enter")
    keys.tab_to("[data-share=save]")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    download.value.save_as(tmp_path / "saved.html")
    assert "</html>" in (tmp_path / "saved.html").read_text(encoding="utf-8")

    walk_the_tour(keys)
    keys.tab_to("header select", most=200)
    keys.press("ArrowDown")
    assert page.evaluate("() => document.documentElement.lang") == "de" and page.title()
    assert page.evaluate("() => document.activeElement.matches('header select')"), "the focus stays"


def walk_the_tour(keys: Keyboard) -> None:
    """Go through all steps, forth and one back, and leave."""
    page = keys.browser.page
    keys.press("t")
    steps = set[str]()
    n_steps = int(page.locator("#tour progress").get_attribute("max") or 0)
    for _ in range(n_steps):
        title, text = keys.read("#tour h2"), keys.read("#tour .tour-text")
        assert title and text and not any(mark in text for mark in ("{", "}", "undefined", "NaN", "[object"))
        steps.add(title)
        keys.press("ArrowRight")
    assert len(steps) == n_steps >= 12
    keys.press("ArrowLeft")
    assert page.locator("#tour progress").get_attribute("value") == str(n_steps - 1)
    keys.press("Escape")
    assert page.locator("#tour").is_hidden()
    assert not page.evaluate(FOCUS)["isBody"], "the focus is somewhere"


@pytest.mark.soak
def test_tab_goes_through_the_whole_page_and_leaves_it(browser: Browser, server: ExploreServer) -> None:
    """No element keeps the focus, and each shows that it has it, on a phone too."""
    for width in (1440, 360):
        open_page(browser, server, {"input": {"text": "the cat"}, "place": "decoder.blocks.0.attn"}, width=width)
        keys, names = Keyboard(browser), list[str]()
        for _ in range(300):
            keys.press("Tab")
            focus = browser.page.evaluate(FOCUS)
            if focus["isBody"] or (names and focus["name"] == names[0]):
                break
            names.append(focus["name"])
        assert 20 < len(names) < 300
        assert any("canvas" in name for name in names)


def test_shortcuts_can_be_switched_off_and_do_nothing_in_fields(browser: Browser, server: ExploreServer) -> None:
    open_page(browser, server, {"input": {"text": "the cat"}})
    browser.page.focus("#text")
    browser.page.keyboard.type("ebt?")
    settle(browser)
    assert browser.page.input_value("#text").startswith("ebt?") and browser.page.locator(".edits li").count() == 0
    assert browser.page.locator("#tour").is_hidden() and not browser.page.evaluate("() => document.querySelector('#help').open")
    browser.page.focus("[data-focus=help]")
    browser.page.keyboard.press("Enter")
    browser.page.focus("#shortcuts")
    browser.page.keyboard.press("Space")
    browser.page.keyboard.press("Escape")
    browser.page.keyboard.press("t")
    settle(browser)
    assert browser.page.locator("#tour").is_hidden() and browser.page.evaluate(FOCUS)["name"].startswith("button# help")
