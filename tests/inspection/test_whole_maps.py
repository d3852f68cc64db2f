"""Maps between all tokens: of tokens that skip a block, of approximations and of recurrent attention, against loops and formulas."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import transom
from tests.inspection.lenses.test_rollout import half, model_of
from tests.models.combinations import ENCODERS, FAMILIES, SET_RECURRENT, batch_for, described
from tests.models.test_combinations import built
from tests.tiers import every
from transom.errors import ConfigError
from transom.inspection.lenses.head_statistics import head_statistics
from transom.inspection.lenses.rollout import attention_flow, attention_rollout
from transom.inspection.whole_maps import non_negative_map, visible_pairs, whole_map
from transom.layers.mixture_of_depths import DepthRouter, all_tokens

ROUTED: dict[str, Any] = {"depth": {"kind": "mod", "capacity": 0.5, "every": 1}}


def routed(family: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return a model some of whose tokens skip each block, a batch, and the trace of all weights and selections."""
    model, batch = model_of(family, **ROUTED)
    for module in model.modules():
        if isinstance(module, DepthRouter):
            torch.nn.init.normal_(module.map.weight, generator=torch.Generator().manual_seed(3))
    return model, batch, transom.trace(model, batch, ["*.weights", "*.depth.selected"])[1]


def by_loops(found: Any, path: str, n_keys: int) -> Tensor:
    """Put the weights of the selected tokens at their places, one by one."""
    selected = found[f"{path.rpartition('.')[0]}.depth.selected"]
    small = found[f"{path}.weights"]
    whole = torch.zeros(len(selected), small.shape[1], selected.shape[1], n_keys, dtype=small.dtype)
    for text, row in enumerate(selected.tolist()):
        places = [i for i, passes in enumerate(row) if passes]
        columns = range(n_keys) if path.endswith(".cross") else places
        for i, query in enumerate(places):
            for j, key in enumerate(columns):
                whole[text, :, query, key] = small[text, :, i, j]
    return whole


@pytest.mark.parametrize("family", every(2, [FAMILIES[3], FAMILIES[0]]), ids=lambda each: each["kind"])
def test_tokens_that_skip_a_block_have_empty_rows(family: dict[str, Any]) -> None:
    model, batch, found = routed(family)
    a = found.activations
    paths = [address.removesuffix(".weights") for address in found if address.endswith(".weights")]
    skipped = torch.cat([found[address].flatten() for address in found if address.endswith(".selected")])
    assert 0 < int(skipped.sum()) < len(skipped)
    maps = {path: whole_map(a, path) for path in paths}
    for path in paths:
        n_keys = (batch.source if path.endswith(".cross") or path.startswith("encoder") else batch.decoder_input).tokens.shape[1]
        expected = by_loops(found, path, n_keys)
        assert torch.equal(maps[path], expected)
        seen = visible_pairs(a, path).expand(expected.shape)
        assert torch.equal(seen & (expected > 0), seen), "what is visible has a weight"
    for module in model.modules():
        if isinstance(module, DepthRouter):
            module.path = all_tokens
    reference = transom.trace(model, batch, ["*.weights", "*.depth.selected"])[1].activations
    for path in paths:
        assert torch.allclose(whole_map(reference, path), maps[path], rtol=1e-9, atol=1e-12)


@pytest.mark.long
def test_rollout_and_flow_leave_tokens_that_skip_a_block_as_they_are() -> None:
    model, batch, found = routed(FAMILIES[3])
    n = batch.decoder_input.tokens.shape[1]
    product = torch.eye(n, dtype=torch.float64)
    for block in range(len(model.decoder.blocks)):
        product = half(by_loops(found, f"decoder.blocks.{block}.attn", n).mean(1)) @ product
    shares = attention_rollout(model, batch)
    assert shares.target is not None and torch.allclose(shares.target, product, rtol=1e-9)
    flow = attention_flow(model, batch, positions=[n - 1]).target
    assert flow is not None and bool(((flow[0, 0] > 0) == (product[0, n - 1] > 0)).all())


def test_statistics_of_heads_that_some_tokens_skip() -> None:
    model, batch, found = routed(FAMILIES[3])
    whole = by_loops(found, "decoder.blocks.1.attn", batch.decoder_input.tokens.shape[1])
    statistics = {(each.address, each.head): each for each in head_statistics(model, [batch]).heads}
    for head in range(whole.shape[1]):
        rows = [row[row > 0] for text in whole[:, head] for row in text if int((row > 0).sum()) > 1]
        each = statistics["decoder.blocks.1.attn", head]
        assert each.n_queries == len(rows)
        entropy = [-sum(p * math.log(p) for p in row.tolist()) for row in rows]
        assert each.entropy == pytest.approx(sum(entropy) / max(len(rows), 1), rel=1e-9)


@pytest.mark.long
def test_statistics_of_an_approximation_are_those_of_its_weights() -> None:
    """Linear attention with elu + 1: A_ij = phi(q_i) phi(k_j) / sum over the keys before."""
    model, batch = model_of(FAMILIES[3], attention={"approximation": "linear"})
    found = transom.trace(model, batch, ["attn.q", "attn.k"])[1]
    phi = [torch.nn.functional.elu(found[f"decoder.blocks.0.attn.{name}"]) + 1 for name in "qk"]
    phi[1] = phi[1].repeat_interleave(phi[0].shape[1] // phi[1].shape[1], 1)
    scores = (phi[0] @ phi[1].mT).tril()
    weights = scores / scores.sum(-1, keepdim=True)
    real = [(text, i) for text, row in enumerate(batch.decoder_input.segments.tolist()) for i, tag in enumerate(row) if tag and i]
    for head in range(weights.shape[1]):
        rows = [weights[text, head, i, : i + 1].tolist() for text, i in real]
        entropy = sum(-sum(p * math.log(p) for p in row) for row in rows) / len(rows)
        assert head_statistics(model, [batch]).heads[head].entropy == pytest.approx(entropy, rel=1e-5)


def test_statistics_of_recurrent_attention_are_those_of_its_weights() -> None:
    config = next(each for each in map(described, SET_RECURRENT) if getattr(each, "attention", None) and each.attention.kind == "additive")
    model, batch = built(config), batch_for(config)
    weights = transom.trace(model, batch, ["decoder.cross.weights"])[1]["decoder.cross.weights"]
    (head,) = head_statistics(model, [batch]).heads
    entropy = list[float]()
    for text, row in enumerate(weights[:, 0].tolist()):
        n_source = int((batch.source.segments[text] > 0).sum())
        of_tokens = [p[:n_source] for i, p in enumerate(row) if batch.decoder_input.segments[text, i] > 0]
        entropy += [-sum(x * math.log(x) for x in p if x) for p in of_tokens if n_source > 1]
    assert (head.address, head.head, head.n_queries) == ("decoder.cross", 0, len(entropy))
    assert head.entropy == pytest.approx(sum(entropy) / len(entropy), rel=1e-9)


@pytest.mark.long
def test_rollout_of_an_encoder_with_linear_attention() -> None:
    model, batch = model_of(ENCODERS[0], attention={"approximation": "linear"})
    first, second = (half(x.mean(1).double()) for x in transom.trace(model, batch, ["attn.weights"])[1].values())
    shares = attention_rollout(model, batch).source
    assert shares is not None and torch.allclose(shares, second @ first, rtol=1e-6)


def test_negative_weights_are_refused() -> None:
    model, batch = model_of(ENCODERS[0], attention={"approximation": {"kind": "nystrom", "n_landmarks": 2}})
    found = transom.trace(model, batch, ["attn.weights"])[1]
    with pytest.raises(ConfigError, match=r"encoder\.blocks\.0\.attn: expected weights of at least 0, found negative ones"):
        non_negative_map(found.activations, "encoder.blocks.0.attn")
