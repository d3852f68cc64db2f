"""Rollout and flow against sums over paths written out in plain PyTorch, and against networkx."""

from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor

import transom
from tests.models.combinations import ENCODERS, FAMILIES, SET_RECURRENT, SIZES, batch_for, described
from tests.models.test_combinations import built
from tests.tiers import every
from transom.config.vision import VisionTransformerConfig
from transom.errors import ConfigError
from transom.inspection.certify import CertificationError
from transom.inspection.lenses import rollout
from transom.inspection.lenses.max_flow import FlowNetwork
from transom.inspection.lenses.rollout import AttentionGraph, attention_flow, attention_rollout, patch_shares
from transom.layers import attention
from transom.models.base import Network

IMAGES: dict[str, Any] = {"classes": ("a", "b"), "image_size": 8, "patch_size": 2, "d_model": 8, "n_heads": 2, "n_layers": 2}


def model_of(family: dict[str, Any], **fields: Any) -> tuple[Network, Any]:
    config = described(SIZES | {"n_kv_heads": 3, "d_ff": 8} | family | fields)
    return built(config), batch_for(config)


def maps(model: Any, batch: Any, name: str) -> list[Tensor]:
    """Return the maps of the blocks of a stack, averaged over heads."""
    found = transom.trace(model, batch, [f"{name}.weights"])[1]
    return [x.mean(1) for x in found.values()]


def half(weights: Tensor) -> Tensor:
    """Return (A + I) divided by its row sums, which are below 2 with a sink."""
    whole = weights + torch.eye(weights.shape[-1], dtype=weights.dtype)
    return whole / whole.sum(-1, keepdim=True)


EXPERTS = {"kind": "moe", "n_experts": 2, "top_k": 1, "norm_topk_prob": False}
STACKS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (FAMILIES[3], {"norm_placement": "pre", "position": "rotary"}),
    (ENCODERS[0], {"norm_placement": "post", "norm": "rmsnorm", "attention": {"sinks": True, "softcap": 1.5}}),
    (FAMILIES[5], {"norm_placement": "parallel", "feed_forward": EXPERTS}),
    (ENCODERS[2], {"norm_placement": "sandwich", "position": "alibi"}),
]


@pytest.mark.parametrize(("family", "fields"), STACKS, ids=lambda each: each.get("kind", each.get("norm_placement")))
def test_one_stack_is_a_product_of_matrices(family: dict[str, Any], fields: dict[str, Any]) -> None:
    model, batch = model_of(family, **fields)
    first, second = map(half, maps(model, batch, "attn"))
    shares = attention_rollout(model, batch)
    found, other = (shares.target, shares.source) if family["kind"] == "decoder" else (shares.source, shares.target)
    assert other is None and found is not None
    assert torch.allclose(found, second @ first, rtol=1e-9, atol=0)
    assert torch.allclose(found.sum(-1), torch.ones(()).double(), rtol=1e-12)
    if family["kind"] == "decoder" and "mask" not in family:
        assert bool((found.triu(1) == 0).all()), "no token is reached by a later one"


@pytest.mark.parametrize("placement", every(2, ["pre", "parallel", "parallel-separate"]))
def test_a_translator_reaches_source_and_target(placement: str) -> None:
    model, batch = model_of(FAMILIES[0], norm_placement=placement)
    encoder, own, cross = (maps(model, batch, name) for name in ("encoder.blocks.*.attn", "decoder.blocks.*.attn", "cross"))
    memory = half(encoder[1]) @ half(encoder[0])
    n_rows, n = own[0].shape[:2]
    target, source = torch.eye(n).double().expand(n_rows, n, n), torch.zeros(n_rows, n, memory.shape[-1]).double()
    for a, c in zip(own, cross, strict=True):
        if placement != "pre":
            target, source = (target + a @ target) / 3, (source + a @ source + c @ memory) / 3
            continue
        target, source = half(a) @ target, half(a) @ source
        target, source = target / 2, (source + c @ memory) / 2
    shares = attention_rollout(model, batch)
    assert shares.target is not None and shares.source is not None
    real = batch.decoder_input.segments > 0
    for found, expected in ((shares.target, target), (shares.source, source)):
        assert torch.allclose(found[real], expected[real], rtol=1e-9, atol=1e-15)
    of_encoder = attention_rollout(model, batch, "encoder")
    assert of_encoder.source is not None and torch.allclose(of_encoder.source, memory, rtol=1e-9) and of_encoder.target is None


@pytest.mark.parametrize("family", every(2, [FAMILIES[3], FAMILIES[0]]), ids=lambda each: each["kind"])
def test_flow_is_that_of_networkx(family: dict[str, Any]) -> None:
    model, batch = model_of(family)
    graph = AttentionGraph.of(model, batch)
    flows = attention_flow(model, batch, positions=[3, 1])
    known = nx.DiGraph()
    for layer, below in enumerate(graph.below):
        for lower, weights in below.items():
            for i, j in weights[0].nonzero().tolist():
                known.add_edge((layer, i), (lower, j), capacity=float(weights[0, i, j]))
    for side, inputs in graph.inputs.items():
        found = getattr(flows, side)
        for row, query in enumerate([3, 1]):
            for j in range(graph.sizes[inputs]):
                expected = nx.maximum_flow_value(known, (len(graph.below) - 1, query), (inputs, j)) if known.has_node((inputs, j)) else 0.0
                assert found[0, row, j] == pytest.approx(expected, abs=1e-9), (side, query, j)


def test_flow_is_bounded_by_the_narrowest_cut() -> None:
    """Two paths of 3 and 2; a residual edge must be used to find both."""
    edges = [(0, 1, 3), (0, 2, 3), (1, 2, 3), (1, 3, 2), (2, 3, 3)]
    assert FlowNetwork(4, edges).max_flow(0, 3) == 5
    assert FlowNetwork(4, edges).max_flow(3, 0) == 0
    crossed = [(0, 1, 1), (0, 2, 1), (1, 3, 1), (1, 4, 1), (2, 3, 1), (3, 5, 1), (4, 5, 1)]
    assert FlowNetwork(6, crossed).max_flow(0, 5) == 2


@pytest.mark.parametrize("pooling", every(2, ["cls", "mean"]))
def test_patches_of_an_image(pooling: str) -> None:
    torch.manual_seed(3)
    config = VisionTransformerConfig.model_validate(IMAGES | {"pooling": pooling})
    model = built(config)
    batch = model.as_batch(torch.rand(2, config.channels, 8, 8, dtype=torch.float64))
    first, second = map(half, maps(model, batch, "attn"))
    whole = second @ first
    expected = (whole[:, 0, 1:] if pooling == "cls" else whole.mean(1)).reshape(2, 4, 4)
    assert torch.allclose(patch_shares(config, attention_rollout(model, batch)), expected, rtol=1e-9)


def test_maps_that_are_not_certified_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel scales the scores twice, which the recomputed weights do not."""
    model, batch = model_of(FAMILIES[3])
    kernel = attention.scaled_dot_product_attention
    monkeypatch.setattr(attention, "scaled_dot_product_attention", lambda q, k, v, args: kernel(q * 3, k, v, args))
    with pytest.raises(CertificationError, match="expected weights that give the head output"):
        attention_rollout(model, batch)


def test_models_and_options_without_a_meaning_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of(FAMILIES[3])
    with pytest.raises(ConfigError, match=r"stack: expected decoder, found encoder"):
        attention_rollout(model, batch, "encoder")
    with pytest.raises(ConfigError, match=r"positions: expected indices from 0 to 3, found 4"):
        attention_flow(model, batch, positions=[4])
    monkeypatch.setattr(rollout, "MAX_FLOW_EDGES", 100)
    with pytest.raises(ConfigError, match=r"attention flow: expected at most 100 output tokens"):
        attention_flow(model, batch)
    config = described(SET_RECURRENT[0])
    with pytest.raises(ConfigError, match="expected a model with blocks of self-attention, found one of kind 'recurrent-seq2seq'"):
        attention_rollout(built(config), batch_for(config))
