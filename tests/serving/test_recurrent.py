"""The attention of a recurrent decoder has a map on the page, and no switch."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transom
from tests.serving.runs import serve
from transom.errors import ConfigError
from transom.serving.server import ExploreServer

pytestmark = pytest.mark.long

LAYER = "decoder.cross"
BODY = {"input": {"text": "the fast wolf"}}


@pytest.fixture(scope="module")
def recurrent(runs: dict[str, Path]) -> Iterator[ExploreServer]:
    """Serve the translator of LSTMs."""
    with serve(runs["recurrent"]) as found:
        yield found


def array(answer: dict[str, Any]) -> Tensor:
    """Return the tensor of an answer."""
    return torch.frombuffer(bytearray(base64.b64decode(answer["data"])), dtype=torch.float32).reshape(answer["shape"])


def test_the_map_is_that_of_the_trace(recurrent: ExploreServer) -> None:
    explorer = recurrent.explorer
    answer = explorer.answer("pass", BODY)
    (layer,) = answer["layers"]
    run = transom.load(explorer.models[0].folder, "fp32")
    weights = transom.trace(run, BODY["input"]["text"], [f"{LAYER}.weights"])[1][f"{LAYER}.weights"][0]
    assert (layer["address"], layer["part"], layer["n_heads"], layer["switchable"]) == (LAYER, "cross", 1, False)
    assert layer["shape"] == list(weights.shape[1:]) == [len(answer["tokens"][stack]) for stack in (layer["queries"], layer["keys"])]
    whole = explorer.answer("tensor", {**BODY, "name": f"{LAYER}.weights", "index": {"n_heads": 0}})
    assert torch.equal(array(whole), weights[0]) and torch.allclose(weights.sum(-1), torch.ones(weights.shape[:2]), atol=1e-5)
    row = explorer.answer("tensor", {**BODY, "name": f"{LAYER}.weights", "index": {"n_heads": 0, "query": 1}})
    assert torch.equal(array(row), weights[0, 1])
    for level in (0, 1):
        tile = explorer.answer("tile", {**BODY, "attention": LAYER, "head": 0, "level": level, "row": 0, "column": 0})
        rows = weights[0, :: 2**level][:64]
        sums = torch.stack([rows[:, start : start + 2**level].sum(1) for start in range(0, weights.shape[2], 2**level)], 1)
        assert torch.allclose(array(tile), sums, atol=1e-6) and tile["ratio"] is None
    cell = explorer.answer("calculation", {**BODY, "name": f"{LAYER}.weights", "index": {"n_heads": 0, "query": 1, "key": 2}})
    assert cell["value"] == weights[0, 1, 2].item() and any(step.get("focus") for each in cell["sections"] for step in each["steps"])


def test_what_needs_a_switch_is_left_out(recurrent: ExploreServer) -> None:
    explorer = recurrent.explorer
    told = explorer.answer("head", {**BODY, "attention": LAYER, "head": 0, "query": 1, "position": 1, "language": "de"})
    assert (told["p_without"], told["contribution"], told["promoted"], told["suppressed"]) == (None, None, [], [])
    assert "lässt sich nicht abschalten" in told["note"]
    assert sum(key["weight"] for key in told["keys"]) == pytest.approx(1, abs=1e-5)
    assert explorer.answer("sweep", {**BODY, "position": 1})["heads"] == []
    off = {"kind": "ablate-heads", "stack": "decoder", "part": "cross", "blocks": [0], "heads": [0]}
    with pytest.raises(ConfigError, match="expected a model with Transformer blocks, found one without"):
        explorer.answer("pass", {**BODY, "edits": [off]})
    for head, error in ((1, "head: expected a number from 0 to 0, found 1"),):
        with pytest.raises(ConfigError, match=error):
            explorer.answer("tile", {**BODY, "attention": LAYER, "head": head, "level": 0, "row": 0, "column": 0})
