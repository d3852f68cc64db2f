"""The page of ``transom explore`` in a browser: bring it to a state, and read numbers and colors of its cells."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import matplotlib
import torch
from playwright.sync_api import Page
from torch import Tensor

from tests.browser import Browser, ColorScheme
from transom.serving.server import ExploreServer

SETTLE = """async () => {
    const isReady = () => document.querySelector("#stage")?.dataset.ready && !document.querySelector("[aria-busy], body.busy");
    const wait = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 10)));
    const end = Date.now() + 30000;
    for (let quiet = 0; quiet < 3; quiet = isReady() ? quiet + 1 : 0) {
        if (Date.now() > end) throw new Error("the page is not ready");
        await wait();
    }
}"""
"""Wait until the page has drawn all that it asked for, three times in a row, since a drawing may start another one."""


def open_page(
    browser: Browser,
    server: ExploreServer,
    state: Mapping[str, Any],
    *,
    width: int = 1440,
    scheme: ColorScheme = "light",
    language: str = "en",
    prepare: Callable[[Page], object] = lambda page: None,
) -> None:
    """Open the page in a new window, in a state as it stands in the address; ``prepare`` gets the empty page before."""
    prepare(browser.new_page(width, scheme, language, urlsplit(server.url).netloc))
    browser.page.goto(f"{server.url}#{fragment(state)}")
    settle(browser)


def fragment(state: Mapping[str, Any]) -> str:
    """Write a state as the fragment of the page's address."""
    return urlencode({name: json.dumps(value) for name, value in state.items()})


def move_to(browser: Browser, state: Mapping[str, Any]) -> None:
    """Bring the open page to another state."""
    go = "(fragment) => { history.replaceState(null, '', `#${fragment}`); dispatchEvent(new HashChangeEvent('hashchange')); }"
    browser.page.evaluate(go, fragment(state))
    settle(browser)


def settle(browser: Browser) -> None:
    """Wait until the page has drawn all that it asked for."""
    browser.page.evaluate(SETTLE)


class Canvas(NamedTuple):
    """A heat map of the page.

    Attributes:
        address: name of the quantity.
        index: fixed axes.
        n_rows: number of rows.
        n_columns: number of cells per row.
        low: value of the first color.
        high: value of the last color.
        offset: number of elements of the quantity before the first cell.
    """

    address: str
    index: Mapping[str, int]
    n_rows: int
    n_columns: int
    low: float
    high: float
    offset: int

    @property
    def signed(self) -> bool:
        """Whether the colors are those of numbers with a sign."""
        return self.low < 0


FIND = "[...document.querySelectorAll(selector)].filter((each) => each.dataset.address)"


def canvases(browser: Browser, selector: str) -> list[Canvas]:
    """Return the heat maps that a selector finds, in the order of the page."""
    found = browser.page.evaluate(f"(selector) => {FIND}.map((each) => ({{...each.dataset}}))", selector)
    return [
        Canvas(
            each["address"],
            json.loads(each["index"]),
            int(each["rows"]),
            int(each["columns"]),
            float(each["lo"]),
            float(each["hi"]),
            int(each.get("offset", 0)),
        )
        for each in found
    ]


Cell = tuple[int, int, int]
"""Number of a heat map, row and column."""


def pixels(browser: Browser, selector: str, cells: Sequence[Cell]) -> list[list[int]]:
    """Return red, green, blue and alpha of the pixel in the middle of each cell."""
    return browser.page.evaluate(
        f"""([selector, cells]) => {{
            const maps = {FIND};
            return cells.map(([map, row, column]) => {{
                const size = maps[map].width / Number(maps[map].dataset.columns);
                const at = (i) => Math.floor((i + 0.5) * size);
                return [...maps[map].getContext("2d").getImageData(at(column), at(row), 1, 1).data];
            }});
        }}""",
        [selector, list(cells)],
    )


def texts(browser: Browser, selector: str, cells: Sequence[Cell]) -> list[str]:
    """Move the pointer over each cell, and return the numbers that the page shows for it."""
    return browser.page.evaluate(
        f"""([selector, cells]) => {{
            const maps = {FIND};
            return cells.map(([map, row, column]) => {{
                const canvas = maps[map];
                const box = canvas.getBoundingClientRect();
                const at = (i, n, start, size) => start + ((i + 0.5) / n) * size;
                const [rows, columns] = [Number(canvas.dataset.rows), Number(canvas.dataset.columns)];
                const seen = canvas.closest(".flipped") ? rows - 1 - row : row;  // of a spectrogram, row 0 is the lowest
                canvas.dispatchEvent(new PointerEvent("pointermove", {{
                    clientX: at(column, columns, box.left, box.width),
                    clientY: at(seen, rows, box.top, box.height),
                    bubbles: true,
                }}));
                return canvas.closest(".heat-figure").querySelector(".readout .number").textContent;
            }});
        }}""",
        [selector, list(cells)],
    )


COLORS = {
    signed: [tuple(round(255 * part) for part in matplotlib.colormaps[name](entry)[:3]) for entry in range(256)]
    for signed, name in ((False, "cividis"), (True, "PuOr_r"))
}
"""The 256 colors of matplotlib for weights and for numbers with a sign."""


def color_of(value: float, low: float, high: float) -> tuple[int, ...]:
    """Return the color of a number between the ends of a scale, from 0 to 255."""
    entry = (torch.tensor(value).double() - low) / (high - low) * 255
    return COLORS[low < 0][int(entry.add(0.5).floor().clamp(0, 255))]


def scale_of(x: Tensor, signed: bool) -> tuple[float, float]:
    """Return the ends of the scale of a heat map: 0 or minus the largest magnitude, and the largest magnitude."""
    finite = x[x.isfinite()]
    top = finite.abs().max().item() if finite.numel() else 0.0
    return (-top if signed else 0.0, top) if top else (-1.0 if signed else 0.0, 1.0)


def is_shown(text: str, value: float, digits: int = 4) -> bool:
    """Return whether a text is the number at the page's precision; of two roundings of a tie both will do."""
    if value != value or value in (float("inf"), float("-inf")):
        return text == str(value)
    near = [value, value * (1 + 2e-7), value * (1 - 2e-7)]
    return text in {f"{each:.{digits}g}" if each else "0" for each in near}
