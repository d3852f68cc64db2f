"""What the guided tour says is what an independent trace has; a comparison says whose numbers it shows."""

import math
from pathlib import Path
from typing import Any

import pytest

import transom
from tests.browser import Browser
from tests.serving.explore_page import is_shown, move_to, open_page, settle
from tests.serving.runs import serve
from tests.serving.shown import Shown, part_of
from tests.serving.test_cells import is_close
from transom.inspection.messages.tables import table
from transom.tasks.load_checkpoint import load_run_or_checkpoint

pytestmark = pytest.mark.long


def walk_to(browser: Browser, step: str) -> list[str]:
    """Go on until a step; return the numbers of its text."""
    title = table("en")["explore"]["tour"][step]["title"]
    while browser.page.inner_text("#tour h2") != title:
        assert browser.page.locator("[data-focus=tour-next].primary").inner_text() != "Finish", f"no step {title}"
        browser.page.click("[data-focus=tour-next]")
        settle(browser)
    return browser.page.locator("#tour .tour-text .number").all_inner_texts()


@pytest.mark.parametrize("shown", ["translator"], indirect=True)
def test_cross_attention_is_shown_where_it_is_clearest(browser: Browser, shown: Shown) -> None:
    """The head and block with the largest weight of the chosen word on a word of the source, also after another word was chosen."""
    tokens = shown.server.explorer.answer("pass", {"input": shown.input})["tokens"]
    words = [each["position"] for each in tokens["encoder"] if not each["special"]]
    layers = [f"decoder.blocks.{block}.cross" for block in (0, 1)]
    open_page(browser, shown.server, shown.state(tour=0))
    walk_to(browser, "cross")
    for query in (2, 5, 1):
        browser.page.click(f".chip[data-stack=decoder][data-position='{query}']")
        settle(browser)
        n, head, block, weight = walk_to(browser, "cross")
        rows = {
            (at, i): part_of(shown.trace, f"{layer}.weights", {"n_heads": i, "query": query})[words].max().item()
            for at, layer in enumerate(layers)
            for i in range(4)
        }
        best = max(rows, key=lambda key: rows[key])
        assert n == "8" and (int(block), int(head)) == best and is_shown(weight, rows[best])
        pressed = browser.page.locator("#heads .tile-map[aria-pressed=true]")
        assert (pressed.get_attribute("data-attention"), pressed.get_attribute("data-head")) == (layers[best[0]], str(best[1]))


@pytest.mark.parametrize("shown", ["language"], indirect=True)
def test_a_pair_of_numbers_turns_with_the_position(browser: Browser, shown: Shown) -> None:
    """The pair before and after the rotation is that of the trace, and the angle of the first pair is the position, in radians."""
    pair = [0, shown.run.model.config.rotary_dim // 2]
    open_page(browser, shown.server, shown.state(tour=0))
    for query in (4, 0):
        move_to(browser, shown.state(tour=0, tokens={"decoder": query}))
        numbers = walk_to(browser, "rotary")
        q = part_of(shown.trace, "decoder.blocks.0.attn.q", {"n_heads": 0, "query": query})[pair].tolist()
        told = [[float(x) for x in each.strip("()").split(", ")] for each in numbers if each.startswith("(")]
        assert all(is_close(f"{a:.4g}", b) for a, b in zip(told[-1], q, strict=True))
        if query == 0:
            assert len(told) == 1
            continue
        (a, b), (c, d) = told
        before = part_of(shown.trace, "decoder.blocks.0.attn.q_proj", {"n_heads": 0, "query": query})[pair].tolist()
        assert [a, b] == pytest.approx(before, rel=1e-3)
        assert numbers[0] == str(query) and int(numbers[1]) == pair[1] + 1
        turned = (math.atan2(d, c) - math.atan2(b, a)) % (2 * math.pi)
        assert turned == pytest.approx(query % (2 * math.pi), abs=1e-2), "the first pair turns by a radian per position"


def test_a_comparison_says_whose_numbers_it_shows(browser: Browser, runs: dict[str, Path], tmp_path: Path) -> None:
    """A calculation has the number of the second model beside it, and the tour is about the first."""
    first, second = runs["language"], runs["language"] / "checkpoints" / "step-2"
    with serve(first, second) as server:
        shown = Shown(server, first, tmp_path)
        cell: dict[str, Any] = {"name": f"{shown.layer}.weights", "index": {"n_heads": 1, "query": 2, "key": 1}}
        open_page(browser, server, shown.state(place=shown.layer, cell=cell))
        assert browser.page.locator(".whose").count() == 0
        move_to(browser, shown.state(place=shown.layer, show="diff", cell=cell))
        for part in ("#heads", "#map", "#row", "#vectors"):
            assert browser.page.inner_text(f"{part} .whose") == "A − B"
        for part in ("#story", "#answer", "#overview", "#calculation"):
            assert browser.page.inner_text(f"{part} .whose") == "model A"
        other = transom.trace(load_run_or_checkpoint(second, "fp32"), shown.batch, [cell["name"]])[1]
        a, b = (part_of(trace, cell["name"], cell["index"]).item() for trace in (shown.trace, other))
        told = browser.page.locator("#calculation .cell-compared .number").all_inner_texts()
        assert is_shown(told[0], b) and is_close(told[1].removeprefix("+"), a - b)
        browser.page.click("[data-focus=tour-start]")
        settle(browser)
        assert browser.page.get_attribute("[data-show=A]", "aria-pressed") == "true"
