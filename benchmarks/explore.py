"""Measure the page of ``transom explore`` in headless Chromium: first paint, an edit, tiles of a long map, bytes of JavaScript.

    python -m benchmarks.explore [--quick] [--out FILE]

The model is a decoder of 6 blocks, trained for a step on made-up text, which does not change the times; that of the long map has 2 narrow
blocks, so that a window of 32k tokens can be trained, and heads of the same width. The aims are those of the page: first paint within
1 s, an edit within 200 ms, a tile of a map of 32k tokens within 50 ms, 200 KB of JavaScript.
"""

import argparse
import json
import random
import statistics
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import transom
from benchmarks.measure import describe_environment, write_result
from tests.browser import Browser, chromium
from tests.serving.explore_page import open_page
from tests.serving.runs import serve
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_threads
from transom.serving.server import PAGE, ExploreServer
from transom.serving.tiles import SIZE

TEXT = "the cat sees the dog and the dog sees the cat\n"
LONG_LAYER = "decoder.blocks.1.attn"
N_BLOCKS = 6

PAINT = """() => new Promise((done) => {
    const look = (list) => list.getEntriesByName("first-contentful-paint").forEach((entry) => done(entry.startTime));
    new PerformanceObserver(look).observe({ type: "paint", buffered: true });
})"""

EDIT = """async (head) => {
    const frame = () => new Promise((done) => requestAnimationFrame(done));
    const drawn = (parts) => !document.querySelector(parts) && document.querySelectorAll(".edits li").length === 1
        && document.querySelector(".probability .old");
    const start = performance.now();
    document.querySelector(`[data-switch="${head[0]}"][data-head="${head[1]}"]`).click();
    await frame();
    while (!drawn("body.busy, " + ["heads", "map", "row", "vectors", "answer"].map((part) => `#${part}[aria-busy]`))) await frame();
    const pictures = performance.now() - start;
    while (!drawn("body.busy, [aria-busy]")) await frame();
    const all = performance.now() - start;
    document.querySelector("[data-action=all-back]").click();
    await frame();
    while (document.querySelector("[aria-busy], body.busy, .edits li, .probability .old")) await frame();
    return [pictures, all];
}"""
"""Switch a head off, and on again: milliseconds until pictures and probabilities are those without it, and until all else is, too."""

TILE = """async (body) => {
    const start = performance.now();
    const reply = await fetch("api/tile", { method: "POST", body: JSON.stringify(body) });
    const { shape } = await reply.json();
    if (!shape) throw new Error("no tile");
    return performance.now() - start;
}"""


def quartiles(times: list[float]) -> dict[str, Any]:
    """Return median, quartiles and largest of some milliseconds."""
    low, median, high = statistics.quantiles(times, n=4, method="inclusive")
    return {"median": round(median, 1), "low": round(low, 1), "high": round(high, 1), "max": round(max(times), 1), "n": len(times)}


def train(folder: Path, n_tokens: int, n_blocks: int, d_model: int) -> Path:
    """Train a decoder with heads of width 32 for a step; its context holds ``n_tokens``."""
    (folder / "text.txt").write_text(TEXT * (3 * n_tokens // len(TEXT)), encoding="utf-8")
    data = [f"data.root={folder}", "data.train.files=text.txt", "data.valid.files=text.txt", "data.valid.start=0.5", "data.valid.end=0.9"]
    width = [f"model.d_model={d_model}", f"model.n_heads={d_model // 32}", f"model.d_ff={4 * d_model}"]
    model = [f"model.n_layers={n_blocks}", f"model.max_seq_len={n_tokens}", "model.position=rotary"]
    steps = ["training.max_steps=1", "training.validate_every=1", "training.checkpoint_every=1", "training.precision=fp32"]
    run = folder / f"run-{n_tokens}"
    transom.train("shakespeare-char", run, [*data, *width, *model, *steps, "tokenizer.vocab_size=60"])
    return run


def first_paint(browser: Browser, server: ExploreServer, n: int) -> list[float]:
    """Return the milliseconds from the navigation to the first paint of content, each time without a cache."""
    times = []
    for _ in range(n):
        open_page(browser, server, {"input": {"text": TEXT.strip()}})
        times.append(float(browser.page.evaluate(PAINT)))
    return times


def edits(browser: Browser, server: ExploreServer, n: int, n_heads: int) -> dict[str, Any]:
    """Return the milliseconds from switching a head off, never off before, to the pictures and probabilities, and to the whole page."""
    times = list[tuple[float, float]]()
    for block in range(N_BLOCKS):
        layer = f"decoder.blocks.{block}.attn"
        open_page(browser, server, {"input": {"text": TEXT.strip()}, "place": layer})  # asks what head 0 does, with the pass without it
        times += [browser.page.evaluate(EDIT, [layer, head]) for head in range(1, n_heads)]
    chosen = random.Random(1).sample(times, min(n, len(times)))
    return {"edit_to_picture_ms": quartiles([each[0] for each in chosen]), "edit_to_page_ms": quartiles([each[1] for each in chosen])}


def tiles(browser: Browser, server: ExploreServer, n: int, n_tokens: int) -> dict[str, Any]:
    """Return the milliseconds of the first tile of a long map, and of tiles at random places of random levels."""
    text = (TEXT * (n_tokens // len(TEXT) + 1))[: n_tokens - 1]
    body = {"model": 0, "input": {"text": text}, "edits": [], "attention": LONG_LAYER, "head": 1}
    open_page(browser, server, {"input": {"text": TEXT.strip()}})
    first = float(browser.page.evaluate(TILE, {**body, "level": 0, "row": 0, "column": 0}))
    draw, times, size = random.Random(1), list[float](), SIZE
    for _ in range(n):
        level = draw.randrange(max(n_tokens // size, 1).bit_length())
        n_tiles = max(n_tokens // (size * 2**level), 1)
        place = {"level": level, "row": draw.randrange(n_tiles), "column": draw.randrange(n_tiles)}
        times.append(float(browser.page.evaluate(TILE, body | place)))
    return {"tokens": n_tokens, "first_with_the_pass": round(first, 1), **quartiles(times)}


def main(arguments: list[str] | None = None) -> None:
    """Measure all, print the results as JSON, and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.explore", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30, help="repetitions of each")
    parser.add_argument("--quick", action="store_true", help="check that everything runs, with a tiny model and meaningless figures")
    parser.add_argument("--out", type=Path, help="JSON file to write the results to")
    args = parser.parse_args(arguments)
    program = chromium()
    if program is None:
        sys.exit("error: expected an installed Chromium, found none; install your distribution's chromium")
    threads = choose_threads().count
    torch.set_num_threads(threads)
    command = " ".join(["python -m benchmarks.explore", *(arguments or sys.argv[1:])])
    result: dict[str, Any] = {"facts": describe_environment(command, threads, measure_peak())}
    n_tokens, d_model = (2048, 64) if args.quick else (2**15, 256)
    with TemporaryDirectory() as folder:
        runs = train(Path(folder), 1024, N_BLOCKS, d_model), train(Path(folder), n_tokens, 2, 64)
        browser = Browser(program)
        try:
            with serve(runs[0]) as server:
                result["first_paint_ms"] = quartiles(first_paint(browser, server, args.rounds))
                result |= edits(browser, server, args.rounds, d_model // 32)
            with serve(runs[1]) as server:
                result["tile_ms"] = tiles(browser, server, args.rounds, n_tokens)
        finally:
            browser.close()
    result["javascript_bytes"] = sum(len(each.read_bytes()) for each in PAGE.iterdir() if each.name.endswith(".js"))
    print(json.dumps(result, indent=1))
    write_result(args.out, result)


if __name__ == "__main__":
    main()
