"""Random cells of every view show the numbers of an independent trace, in text and in color."""

import base64
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Route
from torch import Tensor

import transom
from tests.browser import Browser
from tests.serving.explore_page import Canvas, canvases, color_of, is_shown, open_page, pixels, scale_of, settle, texts
from tests.serving.explore_page import fragment as fragment_of
from tests.serving.runs import INPUTS, NAMES, TARGET, picture, serve, with_a_changed_weight
from tests.tiers import every
from transom.data.batch import translation_batch
from transom.inspection.example_batch import build_example_batch
from transom.inspection.trace import Trace
from transom.serving.server import ExploreServer

N_CELLS = 200
MAPS = ("#heads canvas", "#map canvas", "#row canvas", "#vectors canvas")


class Shown:
    """What a page shows: a served run, its input, and an independent trace."""

    def __init__(self, server: ExploreServer, run: Path, file: Path) -> None:
        """Trace a freshly loaded run on its input; a run of pictures reads the file."""
        self.server, self.run = server, transom.load(run, "fp32")
        text = INPUTS.get(run.name)
        self.input: dict[str, Any] = {"text": text}
        if text is None:
            self.input = {"file": server.explorer.answer("upload", {"name": "a", "data": base64.b64encode(file.read_bytes()).decode()})["file"]}
            batch = build_example_batch(self.run, None, file, "refuse").batch
        elif run.name == "translator":
            self.input["target"] = TARGET
            batch = translation_batch(
                [self.run.tokenizers.source.encode(text)], [self.run.tokenizers.target.encode(TARGET)], [0]
            )
        else:
            batch = build_example_batch(self.run, text, None, "refuse").batch
        self.logits, self.trace = transom.trace(self.run, batch, ["*"], store="all")

    @property
    def layer(self) -> str:
        """Address of the last attention layer."""
        return [each for each in self.trace.quantities if each.endswith((".attn.weights", ".cross.weights"))][-1].removesuffix(".weights")

    def state(self, **fields: Any) -> dict[str, Any]:
        """Return a state of the page."""
        return {"input": self.input, "details": True, **fields}


@pytest.fixture(scope="module")
def shown(request: pytest.FixtureRequest, runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """Serve one of the runs."""
    run = runs[request.param]
    with serve(run) as server:
        yield Shown(server, run, picture(tmp_path_factory.mktemp("picture") / "picture.png"))


def part_of(trace: Trace, address: str, index: Mapping[str, int] = {}) -> Tensor:
    """Return a quantity of the first row of the batch at fixed indices of some axes."""
    x = trace[address]
    axes = trace.axes(address, x.ndim)
    return x[tuple(0 if axis == "batch" else index.get(axis, slice(None)) for axis in axes)]


def values_of(traces: tuple[Trace, ...], canvas: Canvas) -> Tensor:
    """Return the numbers of a heat map, of two traces their difference, in the order of the cells."""
    first, *rest = (part_of(trace, canvas.address, canvas.index).flatten()[canvas.offset :] for trace in traces)
    return first - rest[0] if rest else first


def differences(browser: Browser, selector: str, *traces: Trace, seed: int = 1) -> tuple[list[str], list[str]]:
    """Compare random cells of the heat maps that a selector finds with a trace; return wrong numbers and wrong colors.

    Maps of all heads of a layer have one scale. Pictures without a pointer show colors only.
    """
    maps = canvases(browser, selector)
    assert maps, f"no heat map at {selector}"
    draw, flat = random.Random(seed), [values_of(traces, each) for each in maps]
    whole = [values_of(traces, each._replace(index={}, offset=0)) if "#heads" in selector else x for each, x in zip(maps, flat, strict=True)]
    scales = [scale_of(x, each.signed) for each, x in zip(maps, whole, strict=True)]
    cells = [(number, *divmod(draw.randrange(len(flat[number])), maps[number].n_columns)) for number in draw.choices(range(len(maps)), k=N_CELLS)]
    numbers = texts(browser, selector, cells) if "#heads" not in selector and "#row" not in selector else [""] * N_CELLS
    wrong, pale = list[str](), list[str]()
    for (number, row, column), text, pixel in zip(cells, numbers, pixels(browser, selector, cells), strict=True):
        value = flat[number][row * maps[number].n_columns + column].item()
        where = f"{maps[number].address}{dict(maps[number].index)}, row {row}, column {column}"
        if text and not is_shown(text, value):
            wrong.append(f"{where}: shows {text}, is {value}")
        color = (*color_of(value, *scales[number]), 255) if abs(value) < float("inf") else (0, 0, 0, 0)
        if max(abs(a - b) for a, b in zip(pixel, color, strict=True)) > 1:
            pale.append(f"{where}: has the color {pixel}, expected {color}")
    return wrong, pale


def check_maps(browser: Browser, *traces: Trace) -> int:
    """Check random cells of each view in sight; return the number of views."""
    selectors = [selector for selector in MAPS if canvases(browser, selector)]
    for selector in selectors:
        assert differences(browser, selector, *traces) == ([], []), selector
    return len(selectors)


def check_words(browser: Browser, trace: Trace) -> None:
    """Check the row of weights of the chosen token."""
    address, index = browser.page.evaluate("() => { const map = document.querySelector('#map canvas').dataset; return [map.address, JSON.parse(map.index)] }")
    query = browser.page.evaluate("() => Number(document.querySelector('.row-label.chosen') && [...document.querySelectorAll('.chip[aria-pressed=true]')].map((each) => each.dataset.position)[0])")
    words = browser.page.evaluate("() => [...document.querySelectorAll('#row .word')].map((each) => [Number(each.dataset.key), each.dataset.value, each.querySelector('.word-weight').textContent])")
    weights = part_of(trace, address, {**index, "query": query})
    assert len(words) == len(weights)
    for key, value, text in words:
        assert is_shown(value, weights[key].item()) and is_shown(text, weights[key].item(), digits=2)
