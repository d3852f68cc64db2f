"""Random cells of every view show the numbers of an independent trace, in text and in color."""

import base64
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Route
from torch import Tensor

import transom
from tests.browser import Browser
from tests.serving.explore_page import Canvas, canvases, color_of, is_shown, move_to, open_page, pixels, scale_of, settle, texts
from tests.serving.runs import serve, with_a_changed_weight
from tests.serving.shown import HEAD, QUERY, Shown, part_of
from tests.tiers import every, tiers
from transom.decoding.search.sampling import keep_top_k, keep_top_p
from transom.inspection.messages.tables import table
from transom.inspection.trace import Trace
from transom.tasks.load_checkpoint import load_run_or_checkpoint

N_CELLS = 200
MAPS = ("#heads canvas", "#map canvas", "#row canvas", "#vectors canvas")


DIFFERENCE_ROUNDING = 5e-7
"""Rounding of the difference of two numbers of about 1 in float32, which the page and the trace have computed in passes of their own."""


def values_of(traces: tuple[Trace, ...], canvas: Canvas) -> Tensor:
    """Return the numbers of a heat map, of two traces their difference, in the order of the cells."""
    first, *rest = (part_of(trace, canvas.address, canvas.index).flatten()[canvas.offset :] for trace in traces)
    return first.double() - rest[0].double() if rest else first


def differences(browser: Browser, selector: str, *traces: Trace, seed: int = 1) -> tuple[list[str], list[str]]:
    """Compare random cells of the heat maps that a selector finds with a trace; return wrong numbers and wrong colors.

    Maps of all heads of a layer have one scale, and so have the patches of a picture and the class token, which is not among their cells.
    Pictures without a pointer show colors only.
    """
    maps = canvases(browser, selector)
    assert maps, f"no heat map at {selector}"
    draw, flat = random.Random(seed), [values_of(traces, each) for each in maps]
    whole = [values_of(traces, each._replace(index={} if "#heads" in selector else each.index, offset=0)) for each in maps]
    scales = [scale_of(x, each.signed) for each, x in zip(maps, whole, strict=True)]
    cells = [
        (number, *divmod(draw.randrange(len(flat[number])), maps[number].n_columns)) for number in draw.choices(range(len(maps)), k=N_CELLS)
    ]
    numbers = texts(browser, selector, cells) if "#heads" not in selector else [""] * N_CELLS
    wrong, pale = list[str](), list[str]()
    for (number, row, column), text, pixel in zip(cells, numbers, pixels(browser, selector, cells), strict=True):
        value = flat[number][row * maps[number].n_columns + column].item()
        where = f"{maps[number].address}{dict(maps[number].index)}, row {row}, column {column}"
        least, most = (float(f"{value + error:.4g}") for error in (-DIFFERENCE_ROUNDING, DIFFERENCE_ROUNDING))
        if text and not (is_shown(text, value) or (len(traces) > 1 and least <= float(text) <= most)):
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


PLACES = ("attention", "heads", "feed-forward", "output", "embedding")
CASES = [(name, place) for name in ("language", "translator", "classifier", "pictures") for place in PLACES]
LONG = {*CASES[1:5], ("translator", "attention"), ("classifier", "output"), ("pictures", "attention"), ("pictures", "embedding")}


@pytest.mark.parametrize(
    ("shown", "place"),
    [CASES[0], *(pytest.param(*case, marks=pytest.mark.long if case in LONG else pytest.mark.soak) for case in CASES[1:])],
    indirect=["shown"],
)
def test_cells_show_the_numbers_of_the_model(browser: Browser, shown: Shown, place: str) -> None:
    """In every place of the model: maps of all heads, the map of one, its row over the words, and the vectors of the chosen token."""
    address = {"attention": shown.layer, "feed-forward": f"{shown.layer.rpartition('.')[0]}.ff", "embedding": shown.embedding}
    open_page(browser, shown.server, shown.state(place=address.get(place, place)))
    n_views = check_maps(browser, shown.trace)
    assert n_views == {"attention": 3, "heads": 1}.get(place, 1) + (place == "attention" and "file" in shown.input)
    if place == "attention" and "text" in shown.input:
        check_words(browser, shown)
    if place != "heads":
        check_scalars(browser, shown.trace)


def check_words(browser: Browser, shown: Shown) -> None:
    """Check the row of weights of the chosen token: its numbers, in full precision and as they stand over the words."""
    found = browser.page.evaluate(
        """() => [...document.querySelectorAll("#row .word")].map(
            (each) => [Number(each.dataset.key), each.dataset.value, each.querySelector(".word-weight").textContent])"""
    )
    weights = part_of(shown.trace, f"{shown.layer}.weights", {"n_heads": HEAD, "query": QUERY})
    assert [key for key, *_ in found] == list(range(len(weights)))
    for key, value, text in found:
        assert is_shown(value, weights[key].item()) and is_shown(text, weights[key].item(), digits=2)


def check_scalars(browser: Browser, trace: Trace) -> None:
    """Check the quantities that are one number per token, such as the mean of a norm."""
    read = "(each) => [each.dataset.address, JSON.parse(each.dataset.index), each.textContent]"
    for address, index, text in browser.page.evaluate(f"() => [...document.querySelectorAll('.scalar-value')].map({read})"):
        assert is_shown(text, part_of(trace, address, index).item()), address


def is_close(text: str, value: float, digits: int = 4) -> bool:
    """Return whether a text is a number at the page's precision, within the rounding of float32 sums in another order."""
    last = 10 ** (math.floor(math.log10(max(abs(value), 1e-9))) + 1 - digits)
    return abs(float(text.replace("−", "-")) - value) <= 0.501 * last + 2e-6 * max(1.0, abs(value))


@pytest.mark.long
@pytest.mark.parametrize("shown", every(2, ["language", "translator"]), indirect=True)
def test_probabilities_are_those_of_the_logits(browser: Browser, shown: Shown) -> None:
    """With temperature, top-k and top-p, as transom samples, at random positions."""
    open_page(browser, shown.server, shown.state(place="output"))
    logits, draw, n = shown.logits[0].double(), random.Random(3), 0
    cut = table("en")["explore"]["answer"]["cut"]
    while n < N_CELLS:
        position, settings = draw.randrange(len(logits)), {}
        if n:
            settings = {
                "temperature": draw.choice([0.25, 0.7, 1.5, 3.0]),
                "topK": draw.choice([0, 1, 3, 9]),
                "topP": draw.choice([0.3, 0.9, 1.0]),
            }
        move_to(browser, shown.state(place="output", position=position, **settings))
        log_p = (logits[position] / settings.get("temperature", 1)).log_softmax(-1)[None]
        kept = keep_top_k(log_p, settings["topK"]) if settings.get("topK") else log_p
        kept = keep_top_p(kept.log_softmax(-1), settings["topP"]) if settings.get("topP", 1) < 1 else kept
        p = kept.softmax(-1)[0].tolist()
        bars = browser.page.evaluate(
            """() => [...document.querySelectorAll(".probability")].map(
                (each) => [Number(each.dataset.symbol), each.dataset.value, each.querySelector(".new")?.textContent])"""
        )
        assert [symbol for symbol, *_ in bars] == log_p[0].argsort(descending=True, stable=True)[: len(bars)].tolist() and bars
        for symbol, value, text in bars:
            assert is_shown(value, p[symbol]) and text == (value if p[symbol] else cut), (position, settings, symbol, p[symbol])
        n += len(bars)


@pytest.mark.long
@pytest.mark.parametrize("shown", every(2, ["language", "translator"]), indirect=True)
def test_the_lens_reads_the_residual_stream(browser: Browser, shown: Shown) -> None:
    """Each stream through the final norm and the unembedding, by hand."""
    network, stack = shown.run.model, "decoder"
    names = ["target_embedding.resid" if "target_embedding.resid" in shown.trace.quantities else "embedding.resid"]
    names += [f"{stack}.blocks.{i}.resid_post" for i in range(len(network.decoder.blocks))]
    norm = network.decoder.norm if getattr(network.decoder, "norm", None) is not None else torch.nn.Identity()
    with torch.no_grad():
        read = torch.stack([network.unembedding(norm(shown.trace[name][0])).double().log_softmax(-1) for name in names])
    final = shown.logits[0].double().log_softmax(-1)
    n_positions = len(final)
    open_page(browser, shown.server, shown.state(place="output", position=0))
    n = 0
    for position in random.Random(5).choices(range(n_positions), k=12):
        move_to(browser, shown.state(place="output", position=position))
        rows = browser.page.evaluate(
            """() => [...document.querySelectorAll("#lens tbody tr")].map((row) => [
                [...row.querySelectorAll(".lens-word .number")].map((each) => each.textContent),
                ...[...row.querySelectorAll("td.number")].map((each) => each.textContent)])"""
        )
        answer = int(final[position].argmax())
        assert len(rows) == len(names)
        for log_p, (top, p, rank, kl) in zip(read[:, position], rows, strict=True):
            best = log_p.exp().sort(descending=True).values
            assert all(is_close(text, value, 2) for text, value in zip(top, best[: len(top)].tolist(), strict=True))
            assert is_close(p, log_p[answer].exp().item()) and int(rank) == int((log_p > log_p[answer]).sum()) + 1
            assert is_close(kl, float((final[position].exp() * (final[position] - log_p)).sum()))
            n += len(top) + 3
    assert n >= N_CELLS


@pytest.mark.long
def test_a_changed_weight_changes_the_page(browser: Browser, runs: dict[str, Path], tmp_path: Path) -> None:
    with serve(with_a_changed_weight(runs["language"])) as server:
        shown = Shown(server, runs["language"], tmp_path)
        open_page(browser, server, shown.state(place=shown.layer))
        for selector in MAPS[:2]:
            wrong, pale = differences(browser, selector, shown.trace)
            assert (wrong or selector == "#heads canvas") and pale


@pytest.mark.parametrize("shown", ["language"], indirect=True)
def test_random_numbers_are_noticed(browser: Browser, shown: Shown) -> None:
    """Numbers of the same shapes and ranges in place of the answers of the server differ almost everywhere, in text and color."""

    def made_up(answer: dict[str, Any]) -> dict[str, Any]:
        x = torch.frombuffer(bytearray(base64.b64decode(answer["data"])), dtype=torch.float32)
        random = x.min() + (x.max() - x.min()) * torch.rand(x.shape, generator=torch.Generator().manual_seed(1))
        return {**answer, "data": base64.b64encode(random.numpy().tobytes()).decode()}

    def answer(route: Route) -> None:
        route.fulfill(json=[made_up(each) for each in route.fetch().json()])

    open_page(browser, shown.server, shown.state(place=shown.layer), prepare=lambda page: page.route("**/api/tensor", answer))
    for selector in ("#heads canvas", "#map canvas", "#vectors canvas"):
        with pytest.raises(AssertionError, match="expected"):
            check_maps(browser, shown.trace)
        wrong, pale = differences(browser, selector, shown.trace)
        assert (len(wrong) > 0.9 * N_CELLS or selector == "#heads canvas") and len(pale) > 0.8 * N_CELLS
    with pytest.raises(AssertionError):
        check_words(browser, shown)


@pytest.mark.parametrize("name", tiers(["language", "translator"], long=["language"]))
def test_the_difference_of_two_checkpoints_is_shown(browser: Browser, runs: dict[str, Path], name: str, tmp_path: Path) -> None:
    """Side A, side B, and A - B in float32."""
    first, second = runs[name], runs[name] / "checkpoints" / "step-2"
    with serve(first, second) as server:
        shown = Shown(server, first, tmp_path)
        other = transom.trace(load_run_or_checkpoint(second, "fp32"), shown.batch, ["*"], store="all")[1]
        for show, traces in (("A", [shown.trace]), ("B", [other]), ("diff", [shown.trace, other])):
            open_page(browser, server, shown.state(place=shown.layer, show=show))
            assert check_maps(browser, *traces) == 3
    with pytest.raises(AssertionError):
        assert differences(browser, "#map canvas", shown.trace) == ([], [])


LONG_TEXT = "the cat sees the dog and " * 28
"""700 characters: a map of 701 queries."""


@pytest.mark.long
def test_cells_of_a_long_map_are_sums_of_weights(browser: Browser, runs: dict[str, Path]) -> None:
    """At each zoom, 200 pixels: the color and the number under the pointer are the sum of weights over 2^level keys."""
    run: Any = transom.load(runs["language"], "fp32")
    layer = "decoder.blocks.1.attn"
    weights = transom.trace(run, LONG_TEXT, [f"{layer}.weights"])[1][f"{layer}.weights"][0, HEAD]
    draw, n = random.Random(7), len(weights)
    with serve(runs["language"]) as server:
        open_page(browser, server, {"input": {"text": LONG_TEXT}, "place": layer, "head": HEAD})
        levels = list[int]()
        for _ in range(4):
            canvas = browser.page.locator(".long-main canvas")
            shape, view = canvas.evaluate("(map) => [map.width, {...map.dataset}]")
            level, top, left, unit, high = (float(view[name]) for name in ("level", "top", "left", "unit", "hi"))
            stride = 2 ** int(level)
            sums = torch.nn.functional.pad(weights, (0, -n % stride)).unflatten(1, (-1, stride)).sum(-1)[::stride]
            points = [(draw.randrange(shape), draw.randrange(shape)) for _ in range(N_CELLS)]
            for (x, y), (text, pixel) in zip(points, browser.page.evaluate(READ_PIXELS, points), strict=True):
                query, key = math.floor(top + y * unit), math.floor(left + x * unit)
                value = sums[query // stride, key // stride].item()
                assert is_close(NUMBER.findall(text)[0], value), (level, query, key, text, value)
                assert max(abs(a - b) for a, b in zip(pixel, (*color_of(value, 0.0, high), 255), strict=True)) <= 1, (level, query, key)
            levels.append(int(level))
            canvas.focus()
            browser.page.keyboard.press("+")
            settle(browser)
        assert levels[0] == 1 and levels[-1] == 0


NUMBER = re.compile(r": (\S+?)(?: in all)?$")
READ_PIXELS = """(points) => {
    const canvas = document.querySelector(".long-main canvas");
    const box = canvas.getBoundingClientRect();
    const at = (i, start, size) => start + ((i + 1e-4) / canvas.width) * size;
    return points.map(([x, y]) => {
        canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: at(x, box.left, box.width), clientY: at(y, box.top, box.height) }));
        const pixel = [...canvas.getContext("2d").getImageData(x, y, 1, 1).data];
        return [document.querySelector(".long-map .readout").textContent, pixel];
    });
}"""


@pytest.mark.parametrize("shown", every(2, ["language", "pictures"]), indirect=True)
def test_a_click_on_a_cell_opens_its_calculation(browser: Browser, shown: Shown) -> None:
    """The value is the float32 in full, and the steps in focus give it."""
    open_page(browser, shown.server, shown.state(place=shown.layer))
    draw = random.Random(2)
    for selector in ("#map canvas", "#vectors canvas"):
        maps = canvases(browser, selector)
        for number in draw.sample(range(len(maps)), min(2, len(maps))):
            canvas = maps[number]
            values = values_of((shown.trace,), canvas)
            cell = draw.choice([i for i, value in enumerate(values.tolist()) if value and abs(value) < float("inf")])
            row, column = divmod(cell, canvas.n_columns)
            locator = browser.page.locator(selector).nth(number)
            locator.scroll_into_view_if_needed()
            box: Any = locator.bounding_box()
            browser.page.mouse.click(
                box["x"] + box["width"] * (column + 0.5) / canvas.n_columns, box["y"] + box["height"] * (row + 0.5) / canvas.n_rows
            )
            settle(browser)
            text = browser.page.inner_text("#calculation .cell-value")
            assert torch.tensor(float(text)) == values[cell], canvas.address
            assert canvas.address in browser.page.inner_text("#calculation .cell-name")
            results = browser.page.locator("#calculation .section.focus .step.focus strong").all_inner_texts()
            assert results and is_close(results[-1], values[cell].item()), (canvas.address, results, text)
