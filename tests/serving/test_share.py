"""The copies of the Share menu, read from the clipboard and run as they are, give the numbers that the page shows."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.browser import Browser
from tests.serving.explore_page import canvases, is_shown, open_page, texts
from tests.serving.shown import HEAD, QUERY, Shown, part_of
from transom.cli.main import main

OFF = {"kind": "ablate-heads", "stack": "decoder", "part": "attn", "blocks": [0], "heads": [0, 2]}
PLACES = ("attention", "heads", "feed-forward", "embedding", "output")
CASES = [(name, place) for name in ("language", "translator") for place in PLACES]
LONG = {("language", "attention"), ("language", "output"), ("translator", "attention"), ("translator", "heads")}


class Number(NamedTuple):
    """A number that the page shows.

    Attributes:
        address: name of the quantity.
        index: index of the element, by axis.
        text: the number as the page shows it.
    """

    address: str
    index: Mapping[str, int]
    text: str


def copied(browser: Browser, what: str) -> str:
    """Click an item of the Share menu, and return what is on the clipboard."""
    browser.page.evaluate("() => navigator.clipboard.writeText('')")
    if not browser.page.evaluate("() => document.querySelector('[data-focus=share]').open"):
        browser.page.click("[data-focus=share-summary]")
    browser.page.click(f"[data-share={what}]")
    browser.page.wait_for_function("async () => (await navigator.clipboard.readText()) !== ''")
    return browser.page.evaluate("() => navigator.clipboard.readText()")


def numbers(browser: Browser, shown: Shown, place: str) -> Iterator[Number]:
    """Yield numbers that a place shows of the quantity that is copied."""
    read = "(each) => [{...each.dataset}]"
    if place == "attention":
        for (data,) in browser.page.eval_on_selector_all("#row .word", f"(all) => all.map({read})"):
            yield Number(f"{shown.layer}.weights", {"n_heads": HEAD, "query": QUERY, "key": int(data["key"])}, data["value"])
    elif place == "heads":
        for (data,) in browser.page.eval_on_selector_all("#heads .looks", f"(all) => all.map({read})"):
            index = {"n_heads": int(data["head"]), "query": QUERY, "key": int(data["key"])}
            yield Number(f"{data['looks']}.weights", index, data["value"])
    elif place == "output":
        for (data,) in browser.page.eval_on_selector_all(".probability", f"(all) => all.map({read})"):
            yield Number("probs", {"query": QUERY, "vocab": int(data["symbol"])}, data["value"])
    else:
        maps = canvases(browser, "#vectors canvas")
        found = [i for i, each in enumerate(maps) if each.address.endswith((".resid", ".resid_post"))]
        cells = [(i, *divmod(cell, maps[i].n_columns)) for i in found for cell in range(maps[i].n_columns)]
        for (i, row, column), text in zip(cells, texts(browser, "#vectors canvas", cells), strict=True):
            yield Number(maps[i].address, {"query": QUERY, "d_model": row * maps[i].n_columns + column}, text)


def run_command(text: str, folder: Path) -> None:
    """Run copied lines: the last is the command, those before it write its files."""
    *before, command = text.splitlines()
    for line in before:
        subprocess.run(line, shell=True, cwd=folder, check=True)
    words = shlex.split(command)
    assert words[0] == "transom" and main(words[1:]) == 0


def element(record: Mapping[str, Any], index: Mapping[str, int]) -> Tensor:
    """Return an element of a quantity that a command printed; axes with one chosen head or token have the size 1."""
    x = torch.tensor(record["values"], dtype=torch.float64)
    return x[tuple(min(index.get(axis, 0), size - 1) for axis, size in zip(record["axes"], x.shape, strict=True))]


@pytest.mark.parametrize(
    ("shown", "place"),
    [pytest.param(*case, marks=pytest.mark.long if case in LONG else pytest.mark.soak) for case in CASES],
    indirect=["shown"],
)
def test_the_menu_copies_what_is_in_view(
    browser: Browser, shown: Shown, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a translator with a given translation, and for a language model with two heads off."""
    monkeypatch.chdir(tmp_path)
    address = {"attention": shown.layer, "feed-forward": f"{shown.layer.rpartition('.')[0]}.ff", "embedding": shown.embedding}
    edits = [OFF] if shown.run.model.config.kind == "decoder" else []
    open_page(browser, shown.server, shown.state(place=address.get(place, place), edits=edits, position=QUERY))
    found = list(numbers(browser, shown, place))
    assert len(found) >= 6
    python, command = copied(browser, "python"), copied(browser, "command")
    assert ("transom.edits" in python) == ("--edit" in command) == bool(edits)
    capsys.readouterr()
    lines: dict[str, Any] = {}
    exec(python, lines)
    printed = capsys.readouterr().out
    for each in found:
        assert is_shown(each.text, part_of(lines["trace"], each.address, each.index).item()), each
    run_command(f"{command} --json", tmp_path)
    record = json.loads(capsys.readouterr().out)["quantities"]
    for each in found:
        assert is_shown(each.text, element(record[each.address], each.index).item()), each
    if place == "attention":
        row = [float(number) for number in re.findall(r"\d[\d.e-]*", printed.replace("tensor(", ""))]
        assert [float(each.text) for each in found] == pytest.approx(row, abs=6e-5)
        run_command(command, tmp_path)
        assert {each.text for each in found} <= set(capsys.readouterr().out.split())


@pytest.mark.long
@pytest.mark.parametrize("shown", ["language"], indirect=True)
def test_another_input_gives_other_numbers(browser: Browser, shown: Shown) -> None:
    """The comparison notices a copy that lacks the edits."""
    open_page(browser, shown.server, shown.state(place=shown.layer, edits=[OFF]))
    found = list(numbers(browser, shown, "attention"))
    seen = [each for each in found if each.text != "0"]  # the others are hidden by the mask
    assert any(not is_shown(each.text, part_of(shown.trace, each.address, each.index).item()) for each in seen)
