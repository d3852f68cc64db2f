"""Readers who use a keyboard, a screen reader, a phone, dark colors or another language: axe-core finds nothing serious."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser import Browser, ColorScheme
from tests.serving.explore_page import move_to, open_page, settle
from tests.serving.runs import INPUTS, TARGET, serve
from tests.size import ROOT
from tests.tiers import tiers
from transom.serving.server import ExploreServer

AXE = ROOT / "build" / "npm" / "node_modules" / "axe-core" / "axe.min.js"
"""Where .ci/run installs it."""


@pytest.fixture(scope="module")
def axe() -> str:
    """Return the source of axe-core."""
    if not AXE.is_file():
        pytest.skip("needs axe-core, which .ci/run installs")
    return AXE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def translator(runs: dict[str, Path]) -> Iterator[ExploreServer]:
    """Serve the translator and an earlier checkpoint of it."""
    with serve(runs["translator"], runs["translator"] / "checkpoints" / "step-2") as server:
        yield server


def barriers(browser: Browser, axe: str) -> list[str]:
    """Describe the serious and critical barriers of the page as it stands."""
    found: Any = browser.page.evaluate(f"async () => {{ if (!window.axe) {{ {axe} }} return (await axe.run()).violations; }}")
    return [
        f"{each['id']} ({each['impact']}): {node['html'][:120]} {node['failureSummary'][:200]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


LAYER = "decoder.blocks.1.cross"
VIEWS: dict[str, dict[str, Any]] = {
    "attention": {"place": LAYER, "details": True},
    "calculation": {"place": LAYER, "cell": {"name": f"{LAYER}.weights", "index": {"n_heads": 1, "query": 2, "key": 3}}},
    "heads": {"place": "heads", "sweep": True},
    "output": {"place": "output", "temperature": 1.5, "topK": 3},
    "embedding": {"place": "target_embedding"},
    "edits": {
        "place": "decoder.blocks.0.ff",
        "edits": [{"kind": "ablate-heads", "stack": "decoder", "part": "attn", "blocks": [0], "heads": [1]}],
    },
    "difference": {"place": LAYER, "show": "diff"},
    "tour": {"tour": 0},
    "tour's middle": {"tour": 8},
}
LOOKS: list[tuple[int, ColorScheme, str]] = [(360, "light", "de"), (1440, "dark", "en"), (360, "dark", "en"), (1440, "light", "de")]


@pytest.mark.parametrize("look", tiers(range(len(LOOKS)), long=[0, 1]), ids=lambda number: " ".join(map(str, LOOKS[number])))
def test_nothing_serious_is_found_in_any_view(browser: Browser, translator: ExploreServer, axe: str, look: int) -> None:
    width, scheme, language = LOOKS[look]
    found, shown = list[str](), {"input": {"text": INPUTS["translator"], "target": TARGET}}
    open_page(browser, translator, shown, width=width, scheme=scheme, language=language)
    for view, state in VIEWS.items():
        move_to(browser, shown | state)
        assert browser.page.evaluate("() => document.documentElement.lang") == language
        wide = browser.page.evaluate("() => document.documentElement.scrollWidth")
        found += [f"{view}: the page is {wide} px wide"] * (wide > width) + [f"{view}: {each}" for each in barriers(browser, axe)]
    assert found == []


@pytest.mark.long
def test_a_barrier_is_found(browser: Browser, translator: ExploreServer, axe: str) -> None:
    open_page(browser, translator, {"input": {"text": INPUTS["translator"]}})
    add = "(html) => { document.querySelector('main').insertAdjacentHTML('beforeend', html); }"
    browser.page.evaluate(add, "<button></button><p class='pale'>pale</p>")
    browser.page.evaluate("() => Object.assign(document.querySelector('.pale').style, {color: '#eee', background: '#fff'})")
    assert {each.partition(" ")[0] for each in barriers(browser, axe)} >= {"button-name", "color-contrast"}


@pytest.mark.long
def test_the_help_and_the_menu_have_no_barriers(browser: Browser, translator: ExploreServer, axe: str) -> None:
    open_page(browser, translator, {"input": {"text": INPUTS["translator"]}})
    browser.page.keyboard.press("?")
    assert browser.page.evaluate("() => document.querySelector('#help').open") and barriers(browser, axe) == []
    browser.page.keyboard.press("Escape")
    browser.page.click("[data-focus=share-summary]")
    settle(browser)
    assert barriers(browser, axe) == []
