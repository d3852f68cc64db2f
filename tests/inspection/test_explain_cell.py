"""Every element of every quantity has a hand calculation, whose last step in focus prints the element."""

import random
import re
from typing import Any

import pytest

import transom
from tests.inspection.test_explain import model_and_batch
from tests.inspection.test_explain_items import GPT, ORDINARY, PICTURE, RECURRENT
from tests.models.combinations import ENCODERS, FAMILIES
from transom.errors import ConfigError
from transom.inspection.explain.cell import explain_cell
from transom.inspection.explain.notation import Typeset
from transom.inspection.explain.steps import Values

EXPERTS: dict[str, Any] = {"kind": "moe", "n_experts": 3, "top_k": 2, "n_shared_experts": 1, "expert": "swiglu"}
FIRST: dict[str, dict[str, Any]] = {"llama": GPT | {"position": "rotary", "n_kv_heads": 3, "norm": "rmsnorm", "feed_forward": "swiglu"}}
LONG: dict[str, dict[str, Any]] = {
    "translator": ORDINARY | FAMILIES[2],
    "classifier": ORDINARY | ENCODERS[2],
    "embedder": ORDINARY | ENCODERS[5],
    "experts": GPT | {"feed_forward": EXPERTS},
    "depth": GPT | {"depth": {"kind": "mod", "every": 1}},
    "picture": PICTURE,
    "recurrent": RECURRENT,
}
SOAK: dict[str, dict[str, Any]] = {
    "gpt": GPT,
    "tagger": ORDINARY | ENCODERS[4],
    "mean pooling": ORDINARY | ENCODERS[3],
    "masked": ORDINARY | ENCODERS[0],
    **{placement: GPT | {"norm_placement": placement} for placement in ("post", "sandwich", "parallel")},
    "qk norm": GPT | {"attention": {"qk_norm": "layernorm"}},
    "softcap": GPT | {"attention": {"softcap": 1.5}},
    "alibi": GPT | {"position": "alibi"},
}
WITHOUT_STEPS = {
    "classifier": r"encoder\.(out$|norm\.)",  # of tokens other than the class token, which alone is read
    "picture": r"encoder\.(out$|norm\.)",  # the same
    "embedder": r"logits",  # the scaled vector, which is explained as the embedding
    "experts": r"\.ff\.(chosen$|gates$|experts\.|shared\.)",  # indices of experts, and rows of other experts' tokens
    "depth": r"\.blocks\.\d\.",  # the rows of a block are the selected tokens, not the text's
    "recurrent": r"\.backward_rnn\.|^decoder\.cross\.[kv]$",  # the backward direction is shown as a vector; memories of other positions
}
"""Quantities some of whose elements have no step of their own, and why; their explanation is that of the token and block."""


def printed(step: Any) -> list[float]:
    """Return the numbers that a step prints: a calculation its result, a vector all elements."""
    if isinstance(step, Values):
        return [float(x) for x in step.values]
    return [float(step.write(Typeset())[1].replace("−", "-").replace("∞", "inf"))]


ALL = {**FIRST, **LONG, **SOAK}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *((each, 3) for each in FIRST),
        *(pytest.param(each, 3, marks=pytest.mark.long) for each in LONG),
        *(pytest.param(each, 1, marks=pytest.mark.soak) for each in ALL),
    ],
)
def test_a_step_in_focus_gives_the_element(name: str, part: int) -> None:
    """Of each ``part``-th quantity; which ones differs between families, so that each kind of quantity is among them."""
    model, batch = model_and_batch(ALL[name])
    trace = transom.trace(model, batch, ["*"], store="all")[1]
    draw, without = random.Random(1), set[str]()
    for address in list(trace.quantities)[list(ALL).index(name) % part :: part]:
        x = trace[address]
        axes = trace.axes(address, x.ndim)
        index = {axis: draw.randrange(size) for axis, size in zip(axes, x.shape, strict=True) if axis != "batch" and size}
        if 0 in x.shape:
            continue
        cell = explain_cell(model, batch, trace, address, index)
        value = x[tuple(0 if axis == "batch" else index[axis] for axis in axes)].item()
        assert cell.value == value
        if not cell.steps:
            without.add(address)
            continue
        section, number = cell.steps[-1]
        numbers = printed(cell.explanation.sections[section].steps[number])
        assert any(value == each or abs(value - each) <= 1e-3 * abs(value) + 1e-6 for each in numbers), (address, index, numbers, value)
    allowed = WITHOUT_STEPS.get(name, "nothing")
    assert {address for address in without if not re.search(allowed, address)} == set()
    assert part > 1 or bool(without) == (name in WITHOUT_STEPS), "the list of exceptions holds no family that has none"


@pytest.mark.parametrize(
    ("name", "index", "error"),
    [
        ("decoder.blocks.0.attn.nothing", {}, "name: expected the address of a quantity"),
        ("logits", {"query": 0}, "index: expected one index for each of query, vocab, found query"),
        ("logits", {"query": 0, "vocab": 99}, "index: expected vocab from 0 to 8, found 99"),
        ("logits", {"query": -1, "vocab": 0}, "index: expected query from 0"),
        ("logits", {"query": 0, "key": 0}, "index: expected one index for each of query, vocab, found query, key"),
    ],
)
def test_elements_that_do_not_exist_are_refused(name: str, index: dict[str, int], error: str) -> None:
    model, batch = model_and_batch(GPT)
    trace = transom.trace(model, batch, ["*"], store="all")[1]
    with pytest.raises(ConfigError, match=re.escape(error)):
        explain_cell(model, batch, trace, name, index)


def test_a_probability_is_explained_at_its_temperature() -> None:
    model, batch = model_and_batch(GPT)
    index = {"query": 1, "vocab": 4}
    trace = transom.trace(model, batch, ["*"], store="all", temperature=2.0)[1]
    cell = explain_cell(model, batch, trace, "probs", index, temperature=2.0)
    logits = transom.trace(model, batch, ["logits"])[0][0, 1].double()
    assert cell.value == pytest.approx((logits / 2).softmax(-1)[4].item(), rel=1e-5)
    section, number = cell.steps[-1]
    (shown,) = printed(cell.explanation.sections[section].steps[number])
    assert shown == pytest.approx(cell.value, rel=1e-3)
