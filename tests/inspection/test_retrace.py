"""Passes that keep the blocks before an edit have the numbers of whole passes, bit by bit, and do not run these blocks."""

from typing import Any

import pytest
import torch

import transom
from tests.inspection.edits.by_hand import build
from tests.inspection.test_attention_map import TRANSFORMERS
from tests.models.combinations import SET_TEXTS, batch_for, described
from tests.models.test_combinations import built
from tests.tiers import every
from transom.errors import ConfigError
from transom.inspection.retrace import retrace, unedited_blocks
from transom.inspection.trace import Trace, trace
from transom.models.base import Network


def scale(name: str, **fields: Any) -> dict[str, Any]:
    """Return an edit that scales a stream."""
    return {"kind": "scale", "name": name, "factor": 0.5, **fields}


OFF: dict[str, Any] = {"kind": "ablate-heads", "heads": [1]}
EDITS: dict[str, tuple[str, list[dict[str, Any]], list[str]]] = {
    "a head of the last block": ("gpt", [OFF | {"blocks": [1]}], ["decoder.blocks.0"]),
    "heads of both blocks": ("gpt", [OFF | {"blocks": [1]}, OFF | {"blocks": [0]}], []),
    "an input of a block": ("llama", [scale("decoder.blocks.1.resid_pre")], ["decoder.blocks.0"]),
    "the embedding": ("gpt", [scale("embedding.resid")], []),
    "cross-attention": (
        "translator",
        [OFF | {"stack": "decoder", "part": "cross", "blocks": [1]}],
        ["encoder.blocks.0", "encoder.blocks.1", "decoder.blocks.0"],
    ),
    "both stacks": (
        "translator",
        [OFF | {"stack": "decoder", "blocks": [1]}, OFF | {"stack": "encoder", "part": "attn", "blocks": [1]}],
        ["encoder.blocks.0"],
    ),
    "patches of a picture": ("vit", [scale("encoder.blocks.1.attn.z", positions=[2])], ["encoder.blocks.0"]),
}
"""Model, edits and the blocks before them."""


def traces(model: Network, batch: Any, edits: list[dict[str, Any]]) -> tuple[Trace, Trace, list[str]]:
    """Trace a model with edits, from a trace without them and anew; also return the attention layers that ran for the first."""
    _, plain = trace(model, batch, ["*"], store="all")
    ran = list[str]()
    paths = {module: path for path, module in model.named_modules() if path.endswith((".attn", ".cross"))}
    with transom.edits(model, edits) as scope:
        hooks = [module.register_forward_hook(lambda module, *_: ran.append(paths[module])) for module in paths]
        logits, found = retrace(model, plain)
        for hook in hooks:
            hook.remove()
        fired = scope.fired
        expected_logits, expected = trace(model, batch, ["*"], store="all")
        assert all(2 * n == twice for n, twice in zip(fired, scope.fired, strict=True))
    assert torch.equal(logits, expected_logits)
    return found, expected, ran


def check_equal(found: Trace, expected: Trace) -> None:
    """Check that two traces have the same quantities, bit by bit."""
    assert list(found) == list(expected) and found.idle == expected.idle and found.edited == expected.edited
    assert set(found.activations.recorded) == set(expected.activations.recorded)
    for name in expected:
        assert torch.equal(found[name], expected[name]), name


@pytest.mark.parametrize("what", EDITS)
def test_blocks_before_the_first_edit_do_not_run(what: str) -> None:
    name, edits, kept = EDITS[what]
    model, batch = build(name)
    found, expected, ran = traces(model, batch, edits)
    check_equal(found, expected)
    blocks = [path for path, _ in model.named_modules() if path.rpartition(".")[0].endswith(".blocks")]
    assert list(dict.fromkeys(path.rpartition(".")[0] for path in ran)) == [path for path in blocks if path not in kept]
    with torch.no_grad():
        assert torch.equal(model(batch), trace(model, batch, ["logits"])[0]), "the blocks run again afterwards"


@pytest.mark.parametrize("number", every(5, TRANSFORMERS))
def test_every_kind_of_block_gives_the_numbers_of_a_whole_pass(number: int) -> None:
    """With padding, experts, routers of depth and value residuals."""
    config = described(SET_TEXTS[number])
    model, batch = built(config), batch_for(config)
    stacks = [name for name in ("encoder", "decoder") if hasattr(model, name)]
    for stack in stacks:
        found, expected, _ = traces(model, batch, [scale(f"{stack}.blocks.1.resid_post")])
        check_equal(found, expected)


@pytest.mark.parametrize("fields", [{"depth": {"kind": "mod"}}, {"attention": {"value_residual": "fixed"}}], ids=["depth", "values"])
def test_stacks_that_pass_on_more_than_the_stream_run_whole(fields: dict[str, Any]) -> None:
    model, batch = build("gpt", **fields)
    edit = scale("decoder.blocks.1.resid_post")
    with transom.edits(model, [edit]), torch.no_grad():
        assert unedited_blocks(model) == []
        model(batch)
    found, expected, ran = traces(model, batch, [edit])
    check_equal(found, expected)
    assert "decoder.blocks.0.attn" in ran


def test_other_weights_are_refused() -> None:
    model, batch = build("gpt")
    _, plain = trace(model, batch, ["*"], store="all")
    with torch.no_grad():
        model.get_parameter("decoder.blocks.0.attn.q.weight").mul_(2)
    with pytest.raises(ConfigError, match="expected the weights of the traced pass"):
        retrace(model, plain)
