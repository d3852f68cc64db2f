"""Neurons fire at the tokens with the largest coefficients, and promote tokens through the norm and the output layer."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.models.combinations import ENCODERS, FAMILIES, SIZES, batch_for, described
from tests.models.test_combinations import built
from transom.errors import ConfigError
from transom.inspection.lenses.neurons import find_network_of_neurons, neuron_firings, neuron_tokens
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network


def model_of(family: dict[str, Any], **fields: Any) -> tuple[Any, Any]:
    config = described(SIZES | {"d_ff": 8, "norm": "layernorm", "norm_placement": "pre"} | family | fields)
    return built(config), batch_for(config)


def network_input(model: Network, batch: Any, block: str) -> Tensor:
    """Return what a feed-forward network reads: the normalized stream, in plain PyTorch."""
    recorder, norm = ActivationRecorder(["*"]), model.get_submodule(f"{block}.ff_residual.norm")
    model(batch, recorder)
    x = recorder.activations[f"{block}.ff_residual.norm.x"]
    return F.layer_norm(x, (12,), norm.weight, norm.bias, 1e-5)  # type: ignore[arg-type]


def coefficients(ff: Any, x: Tensor) -> Tensor:
    up = F.linear(x, ff.up.weight, ff.up.bias)
    return F.silu(F.linear(x, ff.gate.weight, ff.gate.bias)) * up if hasattr(ff, "gate") else up.relu()


@pytest.mark.parametrize("kind", ["relu", "swiglu"])
@pytest.mark.parametrize("family", [FAMILIES[3], ENCODERS[4]], ids=lambda each: each["kind"])
@torch.no_grad()
def test_a_neuron_fires_at_the_tokens_with_the_largest_coefficients(family: dict[str, Any], kind: str) -> None:
    model, batch = model_of(family, feed_forward=kind)
    path, ff = find_network_of_neurons(model, 1)
    hidden = coefficients(ff, network_input(model, batch, path.removesuffix(".ff")))
    tokens = batch.decoder_input if hasattr(batch, "decoder_input") else batch.source
    found = neuron_firings(model, [batch, batch], path, [5, 0], top=3)
    for neuron, firings in found.items():
        values = hidden[..., neuron][tokens.segments > 0].repeat(2).sort(descending=True).values[:3]
        assert [each.value for each in firings] == pytest.approx(values.tolist(), abs=1e-6)
        assert all(each.value == pytest.approx(hidden[each.row, each.position, neuron].item(), abs=1e-6) for each in firings)
        assert all(tokens.segments[each.row, each.position] > 0 for each in firings), "no padding"
    assert list(found) == [5, 0] and {each.batch for firings in found.values() for each in firings} == {0, 1}


@torch.no_grad()
def test_an_expert_fires_at_the_tokens_that_are_sent_to_it() -> None:
    experts = {"kind": "moe", "expert": {"kind": "relu"}, "n_experts": 3, "top_k": 1, "norm_topk_prob": False}
    model, batch = model_of(FAMILIES[3], feed_forward=experts)
    x, moe = network_input(model, batch, "decoder.blocks.0"), model.decoder.blocks[0].ff
    chosen, real = (x @ moe.router.weight.T).argmax(-1), batch.decoder_input.segments > 0
    for number in range(3):
        path, ff = find_network_of_neurons(model, 0, expert=number)
        firings = neuron_firings(model, [batch], path, [2], top=20)[2]
        assert {(each.row, each.position) for each in firings} == {tuple(at) for at in (real & (chosen == number)).nonzero().tolist()}
        assert all(each.value == pytest.approx(coefficients(ff, x)[each.row, each.position, 2].item(), abs=1e-6) for each in firings)


@torch.no_grad()
def test_a_routed_block_fires_at_selected_tokens() -> None:
    model, batch = model_of(FAMILIES[3], depth={"kind": "mod", "capacity": 0.5, "every": 2})
    recorder = ActivationRecorder(["*.depth.score"])
    model(batch, recorder)
    model.decoder.blocks[1].depth.map.bias -= recorder.activations["decoder.blocks.1.depth.score"].median()
    recorder = ActivationRecorder(["*.depth.score"])
    model(batch, recorder)
    selected = (recorder.activations["decoder.blocks.1.depth.score"] > 0) & (batch.decoder_input.segments > 0)
    firings = neuron_firings(model, [batch], "decoder.blocks.1.ff", [0], top=20)[0]
    assert selected.any() and {(each.row, each.position) for each in firings} == {tuple(at) for at in selected.nonzero().tolist()}


@pytest.mark.parametrize("placement", ["pre", "post"])
@torch.no_grad()
def test_a_neuron_promotes_what_its_column_raises(placement: str) -> None:
    model, _ = model_of(FAMILIES[3], norm_placement=placement)
    found = neuron_tokens(model, "decoder.blocks.1.ff", [4], top=9)
    norm = model.decoder.norm if placement == "pre" else model.decoder.blocks[1].ff_residual.norm
    v = model.decoder.blocks[1].ff.down.weight[:, 4]
    logits = model.unembedding.weight @ (norm.weight * (v - v.mean()))
    order = logits.argsort(descending=True).tolist()
    assert found.promoted[0].tolist() == order and found.suppressed[0].tolist() == order[::-1]
    assert torch.allclose(found.promoted_logits[0], logits[order], atol=1e-12)


def test_networks_and_neurons_that_do_not_exist_are_refused() -> None:
    model, batch = model_of(FAMILIES[0])
    assert find_network_of_neurons(model, 1)[0] == "decoder.blocks.1.ff"
    for options, expected in (
        ({"block": 2}, "block: expected a number from 0 to 1 in the decoder, found 2"),
        ({"block": 0, "expert": 1}, r"expert: expected none for decoder\.blocks\.0\.ff, which has no experts, found 1"),
    ):
        with pytest.raises(ConfigError, match=expected):
            find_network_of_neurons(model, **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"neurons: expected numbers from 0 to 7 for encoder\.blocks\.0\.ff, found 8"):
        neuron_firings(model, [batch], "encoder.blocks.0.ff", [8])
    with pytest.raises(ConfigError, match="expected a network before a linear output layer, found none"):
        neuron_tokens(model, "encoder.blocks.0.ff", [0])
