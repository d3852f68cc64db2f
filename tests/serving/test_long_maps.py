"""The map of a head over thousands of tokens: at every zoom, colors and numbers are sums of the weights of an independent pass."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transom
from benchmarks.explore import LONG_LAYER, TEXT, train
from tests.browser import Browser
from tests.serving.explore_page import color_of, open_page, settle
from tests.serving.runs import serve
from tests.serving.test_cells import N_CELLS, NUMBER, READ_PIXELS

HEAD = 1


class Rows:
    """Rows of a map, computed from the queries and keys of a pass when they are asked for."""

    def __init__(self, run: Any, text: str) -> None:
        """Keep queries and keys of a layer; a map of 32,768 tokens would take 4 GiB."""
        names = [f"{LONG_LAYER}.q", f"{LONG_LAYER}.k"]
        found = transom.trace(run, text, names)[1]
        self.q, self.k = (found[name][0, HEAD].double() for name in names)
        self._rows = dict[int, Tensor]()

    def __getitem__(self, query: int) -> Tensor:
        """Return the weights of a query in float64: softmax over the keys up to it, 0 for later ones."""
        if query not in self._rows:
            scores = self.k[: query + 1] @ self.q[query] / math.sqrt(self.q.shape[-1])
            self._rows[query] = torch.nn.functional.pad(scores.softmax(-1), (0, len(self.k) - query - 1))
        return self._rows[query]


def check_pixels(browser: Browser, rows: Rows, draw: random.Random) -> int:
    """Check random pixels of the map in view, in color and in the number under the pointer; return the level of its tiles."""
    shape, view = browser.page.locator(".long-main canvas").evaluate("(map) => [map.width, {...map.dataset}]")
    level, top, left, unit, high = (float(view[name]) for name in ("level", "top", "left", "unit", "hi"))
    stride, n = 2 ** int(level), 0
    points = [(draw.randrange(shape), draw.randrange(shape)) for _ in range(N_CELLS)]
    for (x, y), (text, pixel) in zip(points, browser.page.evaluate(READ_PIXELS, points), strict=True):
        query, key = math.floor(top + y * unit), math.floor(left + x * unit)
        query, key = query // stride * stride, key // stride * stride
        value = rows[query][key : key + stride].sum().item()
        (number,) = NUMBER.findall(text)
        assert float(number) == pytest.approx(value, rel=6e-4, abs=0), (level, query, key, text, value)
        assert max(abs(a - b) for a, b in zip(pixel, (*color_of(value, 0.0, high), 255), strict=True)) <= 1, (level, query, key)
        n += value > 0
    assert n > N_CELLS / 8, "weights are in view"
    assert level == max(0, math.ceil(math.log2(unit)))
    return int(level)


@pytest.mark.parametrize(
    "n_tokens", [pytest.param(4096, marks=pytest.mark.soak), pytest.param(2**15, marks=pytest.mark.soak)], ids="{:,} tokens".format
)
def test_a_map_of_thousands_of_tokens_is_exact_at_every_zoom(browser: Browser, tmp_path: Path, n_tokens: int) -> None:
    run = train(tmp_path, n_tokens, 2, 64)
    text = (TEXT * (n_tokens // len(TEXT) + 1))[: n_tokens - 1]
    rows, draw = Rows(transom.load(run, "fp32"), text), random.Random(8)
    assert len(rows.k) == n_tokens
    with serve(run) as server:
        open_page(browser, server, {"place": LONG_LAYER, "head": HEAD})
        browser.page.fill("#text", text)
        browser.page.press("#text", "Enter")
        browser.page.wait_for_selector(".long-main canvas", timeout=120_000)
        settle(browser)
        levels = [check_pixels(browser, rows, draw)]
        browser.page.focus(".long-main canvas")
        while levels[-1] > 0:
            for _ in range(2):
                browser.page.keyboard.press("+")
                settle(browser)
            levels.append(check_pixels(browser, rows, draw))
    assert levels[0] >= math.log2(n_tokens) - 9 and levels == sorted(levels, reverse=True) and len(set(levels)) >= 3
