"""Weights of an edited layer are the kernel's where the edit changes nothing, with every feature of attention."""

from typing import Any

import pytest
import torch

import transom
from tests.inspection.edits.by_hand import STACKS, build
from tests.inspection.test_trace import SCORES, model_of
from tests.models.combinations import ENCODERS, FAMILIES
from tests.tiers import every
from transom.layers.attention import repeat_kv
from transom.layers.observe import ActivationRecorder

FEATURES: list[dict[str, Any]] = [
    {"attention": SCORES, "position": "relative"},
    {"attention": SCORES | {"value_residual": "learned"}, "position": "alibi"},
    {"attention": {"pattern": {"kind": "window", "size": 2}}, "position": "rotary"},
    {"attention": {"sinks": True, "pattern": [{"kind": "strided", "stride": 2}, "full"]}, "n_kv_heads": 1},
    {"depth": {"kind": "mod", "capacity": 0.5, "every": 1}, "position": "rotary"},
]


@pytest.mark.parametrize("features", every(4, FEATURES, long=2), ids=str)
@pytest.mark.parametrize(
    "family", [FAMILIES[0], FAMILIES[3], FAMILIES[5], ENCODERS[0]], ids=lambda each: f"{each['kind']}-{each.get('mask')}"
)
@torch.no_grad()
def test_queries_that_do_not_see_a_hidden_key_keep_weights_and_outputs(family: dict[str, Any], features: dict[str, Any]) -> None:
    model, batch = model_of(family, **features)
    stack, block = {"stack": "decoder"} if family["kind"] == "seq2seq" else {}, 1 if "depth" in features else 0
    layer = f"{'encoder' if family['kind'] == 'encoder' else 'decoder'}.blocks.{block}.attn"
    plain, edited = (ActivationRecorder([f"{layer}.*", f"{layer}.weights"]) for _ in range(2))
    model(batch, plain)
    n = plain.activations[f"{layer}.k"].shape[2]
    with transom.edits(model, [{"kind": "knock-out-key", "blocks": [block], "keys": [n - 1], **stack}]):
        model(batch, edited)
    z, found, weights = plain.activations[f"{layer}.z"], edited.activations[f"{layer}.z"], edited.activations[f"{layer}.weights"]
    known = transom.trace(model, batch, ["attn.weights"], blocks=[block], store="all")[1][f"{layer}.weights"]
    blind = known[..., n - 1] == 0
    assert (weights[..., n - 1] == 0).all() and torch.allclose(weights[blind], known[blind], rtol=0, atol=1e-12)
    assert torch.allclose(found[blind], z[blind], rtol=0, atol=1e-12) and blind.any()
    assert torch.allclose(weights @ repeat_kv(edited.activations[f"{layer}.v"], weights.shape[1]), found, rtol=0, atol=1e-12)


@torch.no_grad()
def test_long_rows_with_block_sparse_masks_are_edited() -> None:
    model, _ = build("gpt", max_seq_len=1200, attention={"pattern": {"kind": "window", "size": 64}})
    batch = model.as_batch(torch.arange(1100)[None] % 8 + 1)
    plain, edited = (ActivationRecorder(["decoder.blocks.0.attn.z"]) for _ in range(2))
    model(batch, plain)
    with transom.edits(model, [{"kind": "knock-out-key", "blocks": [0], "heads": [2], "keys": [1000]}]) as scope:
        model(batch, edited)
    z, found = (each.activations["decoder.blocks.0.attn.z"] for each in (plain, edited))
    changed = (z - found).abs().amax(-1)[0] > 1e-9
    assert scope.fired == (1,) and changed[2].nonzero().flatten().tolist() == [*range(1000, 1064)]
    assert not changed[[0, 1, 3, 4, 5]].any()


@pytest.mark.parametrize("approximation", ["linear", "performer"])
@torch.no_grad()
def test_heads_of_an_approximation_are_ablated(approximation: str) -> None:
    model, batch = build("gpt", attention={"approximation": approximation})
    with transom.edits(model, [{"kind": "ablate-heads", "blocks": [1], "heads": [0]}]):
        found = model(batch)
    layer = model.get_submodule(f"{STACKS['gpt']}.blocks.1.attn")
    layer.o.weight[:, :2] = 0.0  # type: ignore[index, union-attr, operator]
    assert torch.allclose(found, model(batch), rtol=0, atol=1e-12)
