"""Two passes part where they were made to part; equal passes have no difference, and other dtypes differ by rounding."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import transom
from tests.inspection.edits.by_hand import build
from tests.inspection.lenses.test_embeddings import generator
from tests.inspection.test_trace import model_of
from tests.models.combinations import ENCODERS, FAMILIES, SET_RECURRENT, batch_for, described
from tests.models.test_combinations import built
from transom.inspection.activation_sites import list_sites
from transom.inspection.lenses.diff import diff
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network

MOE = {"kind": "moe", "expert": {"kind": "relu"}, "n_experts": 3, "top_k": 1, "norm_topk_prob": False}
MODELS: list[dict[str, Any]] = [
    {**FAMILIES[3], "norm": "rmsnorm", "position": "rotary", "feed_forward": "swiglu"},
    {**FAMILIES[0], "norm": "layernorm", "norm_placement": "post"},
    {**ENCODERS[0], "norm_placement": "parallel", "position": "alibi"},
    {**FAMILIES[4], "feed_forward": MOE},
    {**FAMILIES[3], "depth": {"kind": "mod", "capacity": 0.5, "every": 1}},
]


def changed(model: Network, name: str, by: float = 0.05) -> Network:
    """Copy a model and change one element of a parameter."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        x = other.get_parameter(name)
        x[(0,) * x.ndim] += by
    return other


@pytest.mark.parametrize("fields", MODELS, ids=str)
def test_equal_models_have_no_difference(fields: dict[str, Any]) -> None:
    model, batch = model_of(fields)
    found = diff(model, copy.deepcopy(model), batch)
    assert not found.config and not found.weights and found.first is None and found.first_unequal is None
    assert found.largest.ratio == 0.0 and not found.not_compared and not found.notes
    expected = [each.address for each in list_sites(model.config) if ".experts." not in each.address]
    assert [each.address for each in found.sites] == [*expected, "logits"]


@pytest.mark.parametrize(
    ("fields", "weight", "site"),
    [
        (MODELS[0], "decoder.blocks.1.ff.up.weight", "decoder.blocks.1.ff.hidden"),
        (MODELS[0], "decoder.blocks.1.attn.o.weight", "decoder.blocks.1.resid_mid"),
        (MODELS[0], "decoder.blocks.0.attn.v.weight", "decoder.blocks.0.attn.v"),
        (MODELS[0], "decoder.norm.weight", "logits"),
        (MODELS[1], "encoder.blocks.1.attn.k.weight", "encoder.blocks.1.attn.k"),
        (MODELS[1], "decoder.blocks.0.cross.q.weight", "decoder.blocks.0.cross.q"),
        (MODELS[2], "encoder.blocks.1.ff.down.weight", "encoder.blocks.1.resid_post"),
        (MODELS[3], "decoder.blocks.1.ff.router.weight", "decoder.blocks.1.ff.router"),
        (MODELS[3], "unembedding.weight", "logits"),
    ],
    ids=str,
)
def test_the_first_site_is_the_one_that_a_changed_weight_feeds(fields: dict[str, Any], weight: str, site: str) -> None:
    model, batch = model_of(fields)
    model = model.float()
    found = diff(model, changed(model, weight), batch)
    assert found.first is not None and found.first.address == site and found.first_unequal is found.first
    (one,) = found.weights
    assert one.name == weight and one.max_difference == pytest.approx(0.05, rel=1e-4) and one.ratio > 1
    x = model.get_parameter(weight).detach().double()
    assert one.relative == pytest.approx(0.05 / float(x.norm()), rel=1e-4)


def test_differences_are_those_of_the_recorded_tensors() -> None:
    model, batch = model_of(MODELS[0])
    other = changed(model, "decoder.blocks.0.attn.q.weight")
    recorders = [ActivationRecorder(["*"]) for _ in range(2)]
    with torch.no_grad():
        logits = [each(batch, recorder) for each, recorder in zip((model, other), recorders, strict=True)]
    x, y = (recorder.activations | {"logits": out} for recorder, out in zip(recorders, logits, strict=True))
    for each in diff(model, other, batch).sites:
        assert each.max_difference == float((x[each.address] - y[each.address]).abs().max())
        relative = float((x[each.address] - y[each.address]).norm() / x[each.address].norm())
        assert each.relative == pytest.approx(relative, rel=1e-9)


FP32_BF16 = torch.float32, torch.bfloat16


@pytest.mark.parametrize(
    ("fields", "dtypes"),
    [
        *((fields, FP32_BF16) for fields in (*MODELS[:3], SET_RECURRENT[0], SET_RECURRENT[-1])),
        (MODELS[0], (torch.bfloat16, torch.float32)),
        (MODELS[0], (torch.float64, torch.float32)),
    ],
    ids=str,
)
def test_another_dtype_is_rounding(fields: dict[str, Any], dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    model, batch = model_of(fields) if "cell" not in fields else (built(described(fields)), batch_for(described(fields)))
    a, b = (copy.deepcopy(model).float().to(dtype) for dtype in dtypes)
    found = diff(a, b, batch)
    assert found.first is None and 0 < found.largest.ratio <= 1 and found.first_unequal is not None
    assert all(each.ratio <= 1 for each in found.weights)


def test_a_fault_is_seen_beside_rounding() -> None:
    model, batch = model_of(MODELS[0])
    faulty = changed(model, "decoder.blocks.1.attn.k.weight", 1.0).bfloat16()
    found = diff(model.float(), faulty, batch)
    assert found.first is not None and found.first.address == "decoder.blocks.1.attn.k"
    assert [each.name for each in found.weights if each.ratio > 1] == ["decoder.blocks.1.attn.k.weight"]


def test_inputs_that_differ_in_a_token_part_there_and_nowhere_before() -> None:
    model, _ = build("llama")
    tokens = torch.tensor([[3, 4, 5, 6, 2, 7], [7, 2, 8, 3, 2, 4]])
    others = tokens.clone()
    others[1, 3] = 5
    found = diff(model.float(), model, tokens, others)
    assert found.first is not None and found.first.address == "embedding.resid" and found.first.place == (1, 3)
    for each in found.sites:
        assert not each.ratios[0].any() and not each.ratios[1, :3].any(), each.address
        assert each.ratios[1, 3] > 1
    assert all(bool((each.ratios[1, 3:] > 1).all()) for each in found.blocks if each.address == "logits")


def test_prompts_of_different_length_are_compared_up_to_the_shorter() -> None:
    run = generator("char")
    found = diff(run, run, "the king", "the kin")
    assert found.notes == ["the inputs have 9 and 8 positions: the first 8 are compared"]
    assert found.first is None and all(each.ratios.shape == (1, 8) for each in found.sites)
    found = diff(run, run, "the king", "the queen and")
    assert found.first is not None and found.first.place == (0, 5)
    assert found.tokens[0]["target"][5] == "k" and found.tokens[1]["target"][5] == "q"


def test_other_architectures_differ_in_fields_and_shapes() -> None:
    (a, batch), (b, _) = model_of(FAMILIES[3]), model_of(FAMILIES[3], d_ff=12, position="learned")
    found = diff(a, b, batch)
    fields = {each.field: (each.a, each.b) for each in found.config}
    assert fields["d_ff"] == (8, 12)
    shapes = {each.name: (each.shape_a, each.shape_b) for each in found.weights if each.shape_a != each.shape_b}
    assert any(name.startswith("embedding.position") and each[0] is None for name, each in shapes.items())
    assert "decoder.blocks.0.ff.hidden" in found.not_compared and "logits" in {each.address for each in found.sites}
    assert diff(a, b).sites == [] and len(diff(a, b).config) == len(found.config)


def test_edits_in_force_stay_in_force() -> None:
    model, batch = model_of(FAMILIES[3])
    other = copy.deepcopy(model)
    with transom.edits(other, [{"kind": "ablate-heads", "blocks": [1], "heads": [2]}]):
        found = diff(model.float(), other.float(), batch)
        assert other.edits is not None
    assert found.first is not None and found.first.address == "decoder.blocks.1.attn.z" and model.edits is None


def test_pictures_are_compared() -> None:
    model, batch = build("vit")
    pixels: Tensor = batch.pixels.float()
    found = diff(model.float(), model, pixels, pixels + 0.1)
    assert found.first is not None and found.first is found.sites[0]
