"""The page as a whole: its size, language and state, every place of every model, and what it says of mistakes."""

import base64
import json
from pathlib import Path

import pytest

import transom
from tests.browser import Browser
from tests.serving.explore_page import move_to, open_page, settle
from tests.serving.runs import INPUTS, NAMES, serve
from tests.tiers import tiers
from transom.inspection.messages.tables import LANGUAGES, table
from transom.serving.server import PAGE, ExploreServer
from transom.tasks.run_data import load_sample


def test_the_page_is_small_and_has_no_other_language_than_its_own() -> None:
    sizes = {each.name: len(each.read_bytes()) for each in PAGE.iterdir()}
    assert sum(size for name, size in sizes.items() if name.endswith(".js")) <= 200_000
    assert {name.rpartition(".")[2] for name in sizes} <= {"html", "css", "js", "svg"}
    for name in sizes:
        text = (PAGE / name).read_text(encoding="utf-8")
        assert not any(f"{scheme}://" in text for scheme in ("http", "https", "ws", "wss")), f"{name} names another host"
        assert not any(way in text for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_has_the_language_of_the_browser(browser: Browser, server: ExploreServer, language: str) -> None:
    open_page(browser, server, {}, language=f"nl,{language}-CH,en")
    words = table(language)["explore"]
    assert browser.page.evaluate("() => document.documentElement.lang") == language
    assert browser.page.title() == words["title"] and words["answer"]["title"] in browser.page.inner_text("#answer")
    assert {request.rpartition("/")[2] for request in browser.requests} >= {"app.js", f"{language}.json"}


@pytest.mark.parametrize("name", tiers(NAMES, long=["translator", "pictures"]))
def test_every_place_of_every_model_is_drawn(browser: Browser, runs: dict[str, Path], name: str) -> None:
    """Without an error in the place of a picture, after a person chose a sample."""
    with serve(runs[name]) as server:
        open_page(browser, server, {"input": {"text": INPUTS[name]}} if name in INPUTS else {})
        assert browser.page.locator(".probability").count() > 1
        for place in browser.page.eval_on_selector_all("[data-place]", "(all) => all.map((each) => each.dataset.place)"):
            browser.page.click(f"[data-place='{place}']")
            settle(browser)
            assert browser.page.locator(".error:visible").count() == 0, (place, browser.page.locator(".error:visible").all_inner_texts())
        browser.page.locator("[data-sample]").last.click()
        settle(browser)
        assert browser.page.locator(".error:visible").count() == 0 and browser.page.locator(".probability").count() > 1


def test_a_reloaded_page_shows_the_same_view(browser: Browser, server: ExploreServer) -> None:
    cell = {"name": "decoder.blocks.1.attn.weights", "index": {"n_heads": 2, "query": 4, "key": 1}}
    off = {"kind": "ablate-heads", "stack": "decoder", "part": "attn", "blocks": [0], "heads": [1]}
    state = {"input": {"text": "the dog"}, "place": "decoder.blocks.1.attn", "head": 2, "edits": [off], "temperature": 0.5}
    open_page(browser, server, state)
    move_to(browser, {**state, "cell": cell})
    settle(browser)
    parts = ("#tokens", "#map", "#answer", "#changes", "#calculation")
    before = [browser.page.text_content(part) for part in parts]
    browser.page.wait_for_function("(name) => decodeURIComponent(location.hash).includes(name)", arg=cell["name"])
    browser.page.reload()
    settle(browser)
    assert [browser.page.text_content(part) for part in parts] == before
    assert json.dumps(cell["name"]) in browser.page.evaluate("() => decodeURIComponent(location.hash)")


@pytest.mark.long
def test_what_is_wrong_is_told_in_one_line_and_the_page_goes_on(browser: Browser, server: ExploreServer) -> None:
    open_page(browser, server, {"input": {"text": "the dog"}})
    chips = browser.page.locator(".chip").count()
    move_to(browser, {"input": {"text": "a" * 3000}})
    assert "2,04" in browser.page.inner_text("#problem") and browser.page.locator(".chip").count() == chips
    move_to(browser, {"input": {"text": "the cat sees"}})
    assert browser.page.locator("#problem").is_hidden() and browser.page.locator(".chip").count() == len("the cat sees") + 1
    assert [fault for fault in browser.faults if "status of 400" not in fault] == []
    browser.faults.clear()


@pytest.mark.long
def test_changes_that_the_model_refuses_are_taken_back(browser: Browser, server: ExploreServer) -> None:
    off = {"kind": "ablate-heads", "stack": "decoder", "part": "attn", "blocks": [0], "heads": [1]}
    patch = {"kind": "patch", "name": "decoder.blocks.0.resid_post", "positions": [7], "text": "a"}
    open_page(browser, server, {"input": {"text": "the dog sees the cat"}, "edits": [off]})
    assert browser.page.locator(".edits li").count() == 1
    move_to(browser, {"input": {"text": "the dog sees the cat"}, "edits": [off, patch]})
    settle(browser)
    assert "expected indices from 0 to 1" in browser.page.inner_text("#problem") and browser.page.locator(".chip").count() == 21
    move_to(browser, {"input": {"text": "the dog"}})
    settle(browser)
    assert browser.page.locator("#problem").is_hidden() and browser.page.locator(".chip").count() == 8
    assert [fault for fault in browser.faults if "status of 400" not in fault] == []
    browser.faults.clear()


def test_an_edit_asks_for_the_pictures_first_and_draws_no_token_again(browser: Browser, server: ExploreServer) -> None:
    """In one message beside the pass; what the head does, the lens and the certificates come after them."""
    layer = "decoder.blocks.1.attn"
    open_page(browser, server, {"input": {"text": "the dog sees"}, "place": layer})
    mark = "(parts) => parts.forEach((part) => { document.querySelector(part).kept = true; })"
    parts = ["#tokens .chip", "#place-title h2", "#heads .tile"]
    browser.page.evaluate(mark, parts)
    browser.requests.clear()
    browser.page.click(f"[data-switch='{layer}'][data-head='1']")
    settle(browser)
    asked = [request.rpartition("/")[2] for request in browser.requests]
    assert sorted(asked[:3]) == ["logits", "pass", "tensor"] and sorted(asked[3:]) == ["certificates", "head", "lens"]
    kept = browser.page.evaluate("(parts) => parts.map((part) => document.querySelector(part).kept === true)", parts)
    assert kept == [True, True, False]
    assert browser.page.locator("#heads .tile.off").count() == 1 and browser.page.locator(".probability .old").count() > 0


@pytest.mark.long
def test_a_layer_names_its_certificate(browser: Browser, server: ExploreServer) -> None:
    """After its maps; an edited layer has none."""
    layer = "decoder.blocks.0.attn"
    open_page(browser, server, {"input": {"text": "the dog sees"}, "place": layer})
    ratio = server.explorer.answer("certificates", {"input": {"text": "the dog sees"}})[layer]["ratio"]
    assert f"{ratio:.2g}" in str(browser.page.get_attribute("#heads .certified", "title"))
    browser.page.click(f"[data-switch='{layer}'][data-head='1']")
    settle(browser)
    assert browser.page.locator("#heads .certified").count() == 0


@pytest.mark.long
def test_the_stem_of_a_vision_transformer_has_a_name(browser: Browser, runs: dict[str, Path]) -> None:
    with serve(runs["stem"]) as server:
        open_page(browser, server, {"place": "embedding.stem.stages"})
        overview, title = (browser.page.inner_text(part) for part in ("#overview", "#place-title h2"))
        assert "Convolutional stem" in overview and "stages" not in overview and title == "Convolutional stem"


@pytest.mark.long
def test_sounds_of_the_validation_data_are_offered(browser: Browser, runs: dict[str, Path]) -> None:
    """The spectrogram shown beside the name is smaller than the model's input, so the data are read: the logits are those of the data."""
    with serve(runs["sounds"]) as server:
        open_page(browser, server, {})
        (model,) = server.explorer.answer("models", {})["models"]
        sample = model["samples"][-1]
        browser.page.locator("[data-sample]").last.click()
        settle(browser)
        assert browser.page.locator(".error:visible").count() == 0 and browser.page.locator(".probability").count() > 1
        answer = server.explorer.answer("tensor", {"input": sample["input"], "name": "logits"})
        name = server.explorer.answer("pass", {"input": sample["input"]})["copied"]["sample"]
        run = transom.load(runs["sounds"], "fp32")
        expected = transom.trace(run, load_sample(runs["sounds"], name), ["logits"])[0][0]
        assert base64.b64decode(answer["data"]) == expected.numpy().tobytes()
