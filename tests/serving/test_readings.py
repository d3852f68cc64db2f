"""Numbers outside heat maps are those of an independent trace: overview, answer at a glance, probabilities, sweep, story, all heads."""

import base64
import random
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from playwright.sync_api import Page, Route
from torch import Tensor

import transom
from tests.browser import Browser
from tests.serving.explore_page import is_shown, move_to, open_page
from tests.serving.shown import Shown, part_of
from tests.serving.test_cells import N_CELLS, is_close
from tests.tiers import tiers
from transom.inspection.lenses.logit_attribution import logit_attribution
from transom.inspection.trace import Trace

SMALL, CLEAR = 0.001, 0.5
"""Changes of probabilities, and weights, that the sentences about a head single out."""

Edits = list[dict[str, Any]]


def head_off(layer: str, head: int) -> dict[str, Any]:
    """Return the edit that switches a head off."""
    stack, _, block, part = layer.split(".")
    return {"kind": "ablate-heads", "stack": stack, "part": part, "blocks": [int(block)], "heads": [head]}


class Model:
    """A run under edits, computed apart from the server."""

    def __init__(self, shown: Shown) -> None:
        """Store the run; passes are computed when they are asked for."""
        self.shown, self._passes = shown, dict[str, tuple[Tensor, Trace]]()
        self.symbols = [written(each) for each in shown.server.explorer.answer("vocabulary", {})["symbols"]]

    def under(self, edits: Edits) -> AbstractContextManager[Any]:
        """Put edits in force, if there are any."""
        return transom.edits(self.shown.run, edits) if edits else nullcontext()

    def trace(self, edits: Edits) -> tuple[Tensor, Trace]:
        """Return ln p of each position in float64, and the trace of a pass."""
        if (key := repr(edits)) not in self._passes:
            with self.under(edits):
                logits, found = transom.trace(self.shown.run, self.shown.batch, ["*"], store="all")
            self._passes[key] = logits[0].double().log_softmax(-1), found
        return self._passes[key]

    def lens(self, edits: Edits, position: int) -> list[Tensor]:
        """Return the probabilities that the stream implies after the embedding and after each block."""
        network, found = self.shown.run.model, self.trace(edits)[1]
        names = [f"{self.shown.embedding}.resid", *(f"decoder.blocks.{i}.resid_post" for i in range(len(network.decoder.blocks)))]
        norm = network.decoder.norm if getattr(network.decoder, "norm", None) is not None else torch.nn.Identity()
        with torch.no_grad():
            return [network.unembedding(norm(found[name][0, position])).double().softmax(-1) for name in names]


def written(symbol: str) -> str:
    """Return a symbol as the page writes it."""
    word = re.sub("^[▁Ġ]", "", symbol).replace("\n", "⏎").replace("\t", "⇥")
    return word if word.strip() else "∅" if symbol == "" else "␣"


def read(browser: Browser, selector: str, *parts: str) -> list[list[str]]:
    """Return JavaScript expressions of each element ``e`` that a selector finds."""
    return browser.page.evaluate(
        f"(selector) => [...document.querySelectorAll(selector)].map((e) => [{', '.join(parts)}].map((each) => String(each ?? '')))",
        selector,
    )


def check_overview(browser: Browser, model: Model, edits: Edits, position: int, **settings: float) -> int:
    """Check what the model would say after each block, and with which probability."""
    found = read(browser, "#overview .says", "e.title", "e.querySelector('.meter').style.getPropertyValue('--part')")
    expected = model.lens(edits, position)
    assert len(found) == len(expected)
    for (title, part), p in zip(found, expected, strict=True):
        symbol, text = re.fullmatch(r"Read here, the model would say (.+) with probability (\S+)", title, re.DOTALL).groups()  # type: ignore[union-attr]
        assert symbol == model.symbols[int(p.argmax())] and is_close(text, p.max().item()), (title, p.max())
        assert float(part) == pytest.approx(p.max().item(), rel=1e-5)
    return 2 * len(found)


def check_answer(browser: Browser, model: Model, edits: Edits, position: int, temperature: float = 1.0) -> int:
    """Check the bars of the probabilities, with the edits and without them, and the answer at a glance."""
    now, before = (model.trace(each)[0][position].div(temperature).softmax(-1) for each in (edits, []))
    bars = read(browser, ".probability", "e.dataset.symbol", "e.querySelector('.new').textContent", "e.querySelector('.old')?.textContent")
    best = now.argsort(descending=True, stable=True).tolist()
    assert [int(symbol) for symbol, *_ in bars[:10]] == best[:10]
    for symbol, new, old in bars:
        assert is_close(new, now[int(symbol)].item()) and bool(old) == bool(edits)
        assert not edits or is_close(old, before[int(symbol)].item())
    ((token, text),) = read(browser, "#glance", "e.querySelector('.token').textContent", "e.querySelector('.number').textContent")
    assert token == model.symbols[best[0]]
    told = [before[best[0]], now[best[0]]] if edits else [now[best[0]]]
    assert all(is_close(each, p.item()) for each, p in zip(text.split(" → "), told, strict=True)), (text, told)
    return len(bars) * (2 if edits else 1) + len(told)


def check_story(browser: Browser, model: Model, edits: Edits, position: int, layer: str, head: int, query: int) -> int:
    """Check all numbers of the sentences about a head, in their order."""
    log_p, found = model.trace(edits)
    weights = part_of(found, f"{layer}.weights", {"n_heads": head, "query": query}).double()
    expected: list[tuple[float, int]] = [(each, 4) for each in weights.sort(descending=True).values[:3].tolist()]
    entropy = -(weights * weights.clamp_min(1e-300).log()).sum()
    expected.append((float(entropy.exp()), 0))
    places = {} if ".cross" in layer else {"before": query - 1, "self": query, "first": 0}
    expected += [(weights[key].item(), 4) for key in places.values() if 0 <= key < len(weights) and weights[key] > CLEAR][:1]
    p, without = log_p[position].exp(), model.trace([*edits, head_off(layer, head)])[0][position].exp()
    change, symbol = p - without, int(p.argmax())
    if change.abs().max() < SMALL:
        expected.append((SMALL, 4))
    else:
        for sign in (1, -1):
            largest = (sign * change).topk(3).values
            expected += [(sign * each, 4) for each in largest.tolist() if each > 0]
    with model.under(edits):
        parts = logit_attribution(model.shown.run, model.shown.batch, symbol, position=position).contributions
    expected += [(each.value, 4) for each in parts if (each.part, each.head) == (layer, head)]
    expected += [(p[symbol].item(), 4), (without[symbol].item(), 4)]
    texts = [text for (text,) in read(browser, "#story .number", "e.textContent")]
    assert len(texts) == len(expected), (texts, expected)
    for text, (value, digits) in zip(texts, expected, strict=True):
        near = is_close(text.removeprefix("+"), value) if digits else abs(float(text) - value) <= 0.0501
        assert near or abs(float(text) - value) < 2e-7, (text, value, texts, expected)
    return len(texts)


def check_heads(browser: Browser, model: Model, edits: Edits, tokens: Mapping[str, int]) -> int:
    """Check what the chosen token looks at most in each head: the key and its weight."""
    found = read(
        browser, "#heads .looks", "e.dataset.looks", "e.dataset.head", "e.dataset.key", "e.dataset.value", "e.lastChild.textContent"
    )
    layers = [name.removesuffix(".weights") for name in model.shown.trace.quantities if name.endswith((".attn.weights", ".cross.weights"))]
    assert [each[0] for each in found] == [layer for layer in layers for _ in range(4)]
    for layer, head, key, value, text in found:
        stack = layer.partition(".")[0]
        row = part_of(model.trace(edits)[1], f"{layer}.weights", {"n_heads": int(head), "query": tokens[stack]})
        assert int(key) == int(row.argmax()) and is_shown(value, row.max().item()) and is_shown(text, row.max().item(), 2), (layer, head)
    return 2 * len(found)


def check_sweep(browser: Browser, model: Model, edits: Edits, position: int) -> int:
    """Check the change of ln p of the answer when each head is switched off alone."""
    log_p = model.trace(edits)[0][position]
    found = read(
        browser,
        "#heads .tile",
        "e.querySelector('.tile-map').dataset.attention",
        "e.querySelector('.tile-map').dataset.head",
        "e.querySelector('.badge .number').textContent",
    )
    for layer, head, text in found:
        change = model.trace([*edits, head_off(layer, int(head))])[0][position] - log_p
        assert is_close(text.removeprefix("+"), change[log_p.argmax()].item()), (layer, head, text, change[log_p.argmax()])
        assert text.startswith("+") == (float(text) > 0)
    return len(found)


def views(browser: Browser, shown: Shown, model: Model, draw: random.Random) -> Mapping[str, Callable[[], int]]:
    """Bring the page to random states, and return the checks of its views by name."""
    layers = [name.removesuffix(".weights") for name in shown.trace.quantities if name.endswith((".attn.weights", ".cross.weights"))]
    last = [layer for layer in layers if layer.startswith("decoder.blocks.1")]
    edits = [head_off(draw.choice([each for each in layers if ".blocks.0" in each]), draw.randrange(4))] if draw.random() < 0.7 else []
    lengths = {stack: len(rows) for stack, rows in shown.server.explorer.answer("pass", {"input": shown.input})["tokens"].items()}
    tokens = {stack: draw.randrange(n) for stack, n in lengths.items()}
    position, layer, head = draw.randrange(lengths["decoder"]), draw.choice(last), draw.randrange(4)
    state = shown.state(edits=edits, tokens=tokens, position=position, head=head)

    def at(check: Callable[..., int], *given: Any, **fields: Any) -> Callable[[], int]:
        def go() -> int:
            move_to(browser, {**state, **fields})
            settings = {"temperature": fields["temperature"]} if "temperature" in fields else {}
            return check(browser, model, edits, *given, **settings)

        return go

    return {
        "overview": at(check_overview, position, place=layer),
        "answer": at(check_answer, position, place=layer, temperature=draw.choice([0.5, 1.0, 2.0])),
        "story": at(check_story, position, layer, head, tokens["decoder"], place=layer),
        "heads": at(check_heads, tokens, place="heads"),
        "sweep": at(check_sweep, position, place="heads", sweep=True),
    }


@pytest.mark.parametrize("shown", tiers(["language", "translator"], long=[]), indirect=True)
def test_numbers_outside_heat_maps_are_those_of_the_model(browser: Browser, shown: Shown) -> None:
    """At random positions, tokens, heads, temperatures and edits: 200 numbers of each view at least."""
    model, draw, n = Model(shown), random.Random(4), dict[str, int]()
    open_page(browser, shown.server, shown.state())
    while not n or min(n.values()) < N_CELLS:
        for name, check in views(browser, shown, model, draw).items():
            if n.get(name, 0) < N_CELLS:
                n[name] = n.get(name, 0) + check()


def made_up(x: Any, draw: random.Random) -> Any:
    """Return an answer of the server with other numbers: fractions from 0 to 1, and tensors with their elements in another order."""
    if isinstance(x, dict):
        return {key: shuffled(value, draw) if key == "data" else made_up(value, draw) for key, value in x.items()}
    if isinstance(x, list):
        return [made_up(each, draw) for each in x]
    return draw.random() if isinstance(x, float) else x


def shuffled(data: str, draw: random.Random) -> str:
    """Return a tensor in base64 with its elements in another order."""
    x = torch.frombuffer(bytearray(base64.b64decode(data)), dtype=torch.float32)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(draw.randrange(1000)))
    return base64.b64encode(x[order].numpy().tobytes()).decode()


@pytest.mark.long
@pytest.mark.parametrize("shown", ["language"], indirect=True)
def test_random_numbers_are_noticed_in_every_view(browser: Browser, shown: Shown) -> None:
    draw = random.Random(5)

    def answer(route: Route) -> None:
        route.fulfill(json=made_up(route.fetch().json(), draw))

    def prepare(page: Page) -> None:
        for kind in ("tensor", "logits", "lens", "head", "sweep"):
            page.route(f"**/api/{kind}", answer)

    model = Model(shown)
    for right in (True, False):
        open_page(browser, shown.server, shown.state(), prepare=(lambda page: None) if right else prepare)
        for name, check in views(browser, shown, model, random.Random(4)).items():
            if right:
                assert check() > 0
            else:
                with pytest.raises(AssertionError):
                    check()
                assert browser.page.locator(".error:visible").count() == 0, name
