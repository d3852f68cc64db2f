"""The form for a patch: it shows the tokens of the second input, and puts any of their vectors in the place of any vector here."""

from pathlib import Path
from typing import Any

import pytest
import torch

import transom
from tests.browser import Browser
from tests.serving.explore_page import open_page, settle
from tests.serving.runs import serve
from tests.serving.test_cells import is_close

pytestmark = pytest.mark.long

TEXT, OTHER = "the dog sees", "and the cat sees"
STREAM = "decoder.blocks.0.resid_post"


def probabilities(browser: Browser) -> dict[int, str]:
    """Return the probability of each symbol in sight."""
    read = "(all) => all.map((each) => [Number(each.dataset.symbol), each.dataset.value])"
    return dict(browser.page.eval_on_selector_all(".probability", read))


def choose(browser: Browser, choice: str, position: int) -> None:
    """Choose a token of the form."""
    browser.page.click(f"[data-choice={choice}][data-position='{position}']")


def open_form(browser: Browser) -> None:
    """Unfold the form."""
    browser.page.click(".patch summary")
    assert browser.page.locator("[data-choice=patch_from]").count() == 0 and browser.page.locator("[data-action=patch]").is_disabled()


@pytest.mark.parametrize(("to", "source"), [(9, 3), (12, None)], ids=["another position", "the same position"])
def test_a_token_of_a_second_text_is_put_in(browser: Browser, runs: dict[str, Path], to: int, source: int | None) -> None:
    """The probabilities are those of a pass in which a hook replaces the vector; without a choice, position n comes from n."""
    run: Any = transom.load(runs["language"], "fp32")
    with serve(runs["language"]) as server:
        open_page(browser, server, {"input": {"text": TEXT}, "place": "decoder.blocks.1.attn"})
        before = probabilities(browser)
        open_form(browser)
        browser.page.fill("#patch-text", OTHER)
        browser.page.wait_for_selector("[data-choice=patch_from]")
        shown = browser.page.locator("[data-choice=patch_from] .chip-text").all_inner_texts()
        assert "".join(shown[1:]).replace("␣", " ").strip() == OTHER
        browser.page.select_option("#patch-name", STREAM)
        choose(browser, "patch_to", to)
        if source is not None:
            choose(browser, "patch_from", source)
        browser.page.click("[data-action=patch]")
        settle(browser)
        told, after = browser.page.inner_text(".edits li"), probabilities(browser)
    given = to if source is None else source
    assert f"position {to}" in told and f"position {given}" in told and OTHER in told
    vector = transom.trace(run, OTHER, [STREAM])[1][STREAM][0, given]

    def replace(module: torch.nn.Module, inputs: Any, output: tuple[Any, ...]) -> tuple[Any, ...]:
        stream = output[0].clone()
        stream[0, to] = vector
        return stream, *output[1:]

    block = run.model.decoder.blocks[0]
    with block.register_forward_hook(replace):
        p = transom.trace(run, TEXT, ["logits"])[0][0, -1].double().softmax(-1)
    assert before != after and all(is_close(text, p[symbol].item()) for symbol, text in after.items())


def test_a_patch_of_a_second_picture_is_put_in(browser: Browser, runs: dict[str, Path]) -> None:
    """All patches of the second picture, one after the other, give its own answer."""
    with serve(runs["pictures"]) as server:
        open_page(browser, server, {})
        samples = server.explorer.answer("models", {})["models"][0]["samples"]
        first = browser.page.locator("[data-sample]").count() - 1
        open_form(browser)
        browser.page.select_option("#patch-name", "encoder.blocks.1.resid_post")
        browser.page.click(f"[data-patch-sample='{first}']")
        browser.page.wait_for_selector("[data-choice=patch_from]")
        choose(browser, "patch_to", 0)  # the class token, which alone is read after the last block
        browser.page.click("[data-action=patch]")
        settle(browser)
        assert "second picture" in browser.page.inner_text(".edits li")
        after = probabilities(browser)
        file = samples[first]["input"]
        open_page(browser, server, {"input": file})
        assert probabilities(browser) == after


def test_a_second_text_that_cannot_be_read_is_refused_in_its_place(browser: Browser, runs: dict[str, Path]) -> None:
    with serve(runs["language"]) as server:
        open_page(browser, server, {"input": {"text": TEXT}})
        open_form(browser)
        browser.page.fill("#patch-text", "a" * 3000)
        browser.page.wait_for_selector(".patch .error:visible")
        assert "2,04" in browser.page.inner_text(".patch .error") and browser.page.locator("[data-action=patch]").is_disabled()
        browser.page.fill("#patch-text", "a ship")
        browser.page.wait_for_selector("[data-choice=patch_from]")
        assert browser.page.locator(".patch .error").is_hidden()
        assert [fault for fault in browser.faults if "status of 400" not in fault] == []
        browser.faults.clear()
