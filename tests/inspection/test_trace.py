"""Traces give the numbers of the pass for chosen blocks, heads and positions, and certify what they recompute."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transom
from tests.models.combinations import ENCODERS, FAMILIES, SET_TEXTS, SIZES, batch_for, described
from tests.models.test_combinations import built
from tests.tiers import every
from transom.config.adapter import LoraConfig
from transom.errors import ConfigError
from transom.inspection.activations import Activations
from transom.inspection.certify import FAULTS, CertificationError, certify, kernel_logsumexp
from transom.inspection.derive_attention import AttentionInputs
from transom.inspection.names import list_names
from transom.layers.attention import attention_weights
from transom.layers.lora import LoraLinear
from transom.layers.observe import ActivationRecorder
from transom.models.apply_lora import apply_lora
from transom.models.base import Network

SCORES: dict[str, Any] = {"softcap": 1.5, "sinks": True, "qk_norm": "rmsnorm"}


def model_of(family: dict[str, Any], **fields: Any) -> tuple[Network, Any]:
    """Build a model with grouped heads in float64, and a batch of two texts, one with padding."""
    config = described(SIZES | {"n_kv_heads": 3, "d_ff": 8} | family | fields)
    return built(config), batch_for(config)


def whole(model: Network, batch: Any) -> Activations:
    recorder = ActivationRecorder(["*"])
    with torch.no_grad():
        logits = model(batch, recorder)
    return Activations(model, batch, recorder.activations | {"logits": logits})


@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[3], ENCODERS[0]], ids=lambda each: each["kind"])
@pytest.mark.parametrize("position", ["rotary", "alibi"])
def test_blocks_heads_and_positions_are_parts_of_the_whole(family: dict[str, Any], position: str) -> None:
    model, batch = model_of(family, position=position, attention=SCORES)
    a = whole(model, batch)
    names = [
        "scores",
        "masked_scores",
        "logsumexp",
        "dot_products",
        "weights",
        "q",
        "k",
        "v",
        "z",
        "head_out",
        "resid_post",
        "q_proj",
        "logits",
    ]
    logits, found = transom.trace(model, batch, names, blocks=[1], heads=[4, 1], positions=[2, 0])
    assert torch.equal(logits, a["logits"])
    assert {address.split(".blocks.")[1][0] for address in found if ".blocks." in address} == {"1"}
    for address, x in found.items():
        axes = found.axes(address)
        expected = a[address]
        for axis, indices in (("n_heads", [4, 1]), ("query", [2, 0])):
            if axis in axes:
                expected = expected.index_select(axes.index(axis), torch.tensor(indices))
        assert torch.allclose(x, expected, rtol=1e-12, atol=1e-12), address


def test_names_are_addresses_endings_patterns_and_those_of_transformer_lens() -> None:
    model, batch = model_of(FAMILIES[3], position="rotary")
    found = transom.trace(model, batch, ["decoder.blocks.0.attn.q", "ff.hidden", "*.resid_pre", "blocks.1.attn.hook_pattern"])[1]
    assert list(found) == [
        "decoder.blocks.0.resid_pre",
        "decoder.blocks.0.attn.q",
        "decoder.blocks.0.ff.hidden",
        "decoder.blocks.1.resid_pre",
        "decoder.blocks.1.attn.weights",
        "decoder.blocks.1.ff.hidden",
    ]
    assert torch.equal(found["attn.weights"], found["blocks.1.attn.hook_pattern"])
    with pytest.raises(ConfigError, match=r"'ff\.hidden', which fits 2"):
        found["ff.hidden"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"names": ["attn.weigths"]}, "'attn.weigths'; the nearest are attn.weights, "),
        ({"blocks": [2]}, r"blocks: expected indices from 0 to 1, found 2"),
        ({"heads": [-1]}, r"heads: expected indices from 0 to 5, found -1"),
    ],
)
def test_what_does_not_exist_is_refused_before_the_pass(options: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of(FAMILIES[3])
    monkeypatch.setattr(model, "forward", None)  # nothing runs
    with pytest.raises(ConfigError, match=expected):
        transom.trace(model, batch, **options)


def test_probabilities_alone_have_positions() -> None:
    model, batch = model_of(FAMILIES[3])
    logits, found = transom.trace(model, batch, ["probs"], positions=[3])
    assert torch.allclose(found["probs"][:, 0], logits[:, 3].softmax(-1))
    with pytest.raises(ConfigError, match=r"positions: expected indices from 0 to 3 for probs, found 4"):
        transom.trace(model, batch, ["probs"], positions=[4])


def test_each_side_has_its_own_positions() -> None:
    model, batch = model_of(FAMILIES[0])
    found = transom.trace(model, batch, ["encoder.*resid_post"], blocks=[0], positions=[4])[1]
    assert found["encoder.blocks.0.resid_post"].shape[1] == 1
    with pytest.raises(ConfigError, match=r"to 3 for decoder\.blocks\.0\.resid_post, found 4"):
        transom.trace(model, batch, ["resid_post"], blocks=[0], positions=[4])


def test_a_trace_is_a_mapping_of_what_was_asked_for() -> None:
    model, batch = model_of(FAMILIES[3])
    found = transom.trace(model, batch, ["attn.weights"], blocks=[0])[1]
    assert "decoder.blocks.0.attn.weights" in found and "x" not in found and len(found) == 1
    assert found.axes("attn.weights") == ["batch", "n_heads", "query", "key"]
    with pytest.raises(ConfigError, match=r"found 'ff\.hidden'; the nearest are .* of this trace"):
        found["ff.hidden"]


def test_experts_and_routed_blocks_without_tokens_are_idle() -> None:
    experts = {"kind": "moe", "expert": {"kind": "relu"}, "n_experts": 16, "top_k": 1, "norm_topk_prob": False}
    model, batch = model_of(FAMILIES[3], feed_forward=experts)
    found = transom.trace(model, batch, ["*.experts.*.hidden"])[1]
    assert found.idle and len(found) + len(found.idle) == 32
    assert all(len(x) for x in found.values())
    model, batch = model_of(FAMILIES[3], depth={"kind": "mod", "capacity": 0.5, "every": 1})
    torch.nn.init.constant_(model.get_parameter("decoder.blocks.1.depth.map.bias"), -1e3)
    found = transom.trace(model, batch)[1]
    assert "decoder.blocks.1.resid_post" in found.idle and "decoder.blocks.0.resid_post" in found
    assert [each.address for each in found.certify()] == ["decoder.blocks.0.attn"]


def test_weights_that_change_after_the_pass_are_noticed() -> None:
    model, batch = model_of(FAMILIES[3])
    found = transom.trace(model, batch, ["attn.q_proj", "resid_post"])[1]
    kept = found["decoder.blocks.0.attn.q_proj"]
    with torch.no_grad():
        model.unembedding.weight.add_(1.0)
    assert torch.equal(found["decoder.blocks.0.attn.q_proj"], kept), "what was computed stays"
    with pytest.raises(ConfigError, match="expected the weights of the traced pass, found other ones"):
        found["decoder.blocks.1.attn.q_proj"]


def test_quantities_of_a_model_in_training_are_those_of_evaluation() -> None:
    model, batch = model_of(FAMILIES[3], norm="batchnorm", norm_placement="pre", dropout=0.5)
    expected = transom.trace(model, batch, ["attn.q_proj", "attn_residual.norm.out"])[1]
    expected = {address: x.clone() for address, x in expected.items()}
    found = transom.trace(model.train(), batch, list(expected))[1]
    assert all(torch.equal(found[address], x) for address, x in expected.items())
    assert not found["decoder.blocks.0.attn.q_proj"].requires_grad


def test_a_head_contributes_with_its_low_rank_update() -> None:
    model, batch = model_of(FAMILIES[3], attention={"output_bias": False})
    apply_lora(model, LoraConfig(rank=2, target_modules=("attn.o",)))
    for module in model.modules():
        if isinstance(module, LoraLinear):
            torch.nn.init.normal_(module.lora_b)
    found = transom.trace(model, batch, ["attn.head_out", "attn.out"], blocks=[0])[1]
    assert torch.allclose(found["attn.head_out"].sum(1), found["attn.out"])


def test_what_is_no_model_or_input_is_refused() -> None:
    model, batch = model_of(FAMILIES[3])
    with pytest.raises(ConfigError, match="expected a run or a model of transom, found Linear"):
        transom.trace(torch.nn.Linear(2, 2), batch)
    with pytest.raises(ConfigError, match="expected a batch or tensor for a model without a tokenizer, found a text"):
        transom.trace(model, "a text")
    with pytest.raises(ConfigError, match="temperature: expected a number above 0, found 0"):
        transom.trace(model, batch, temperature=0.0)
    with pytest.raises(ConfigError, match=r"blocks: expected blocks with decoder\.blocks\.1\.resid_post"):
        transom.trace(model, batch, ["decoder.blocks.1.resid_post"], blocks=[0])


def test_a_model_in_training_is_traced_without_dropout_and_trains_on() -> None:
    model, batch = model_of(FAMILIES[3], dropout=0.5)
    plain = transom.trace(model, batch, ["logits"])[0]
    model.train()
    assert torch.equal(transom.trace(model, batch, ["logits"])[0], plain)
    assert model.training


def test_temperature_divides_the_logits_before_probabilities() -> None:
    model, batch = model_of(FAMILIES[3])
    logits, found = transom.trace(model, batch, ["probs", "log_probs"], temperature=0.5)
    assert torch.allclose(found["probs"], (2 * logits).softmax(-1))
    assert torch.allclose(found["log_probs"], found["probs"].log())


def test_more_can_be_asked_for_later_if_it_is_stored() -> None:
    model, batch = model_of(FAMILIES[3])
    a = whole(model, batch)
    found = transom.trace(model, batch, ["logits"], store="all")[1]
    assert torch.equal(found.activations["decoder.blocks.1.attn.weights"], a["decoder.blocks.1.attn.weights"])
    needed = transom.trace(model, batch, ["logits"])[1]
    with pytest.raises(ConfigError, match="a site that it follows from was not recorded"):
        needed.activations["decoder.blocks.1.attn.weights"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", every(3, [*FAMILIES, *ENCODERS]), ids=lambda each: each["kind"])
def test_real_maps_are_certified(family: dict[str, Any], dtype: torch.dtype) -> None:
    model, batch = model_of(family, attention=SCORES, position="relative")
    found = transom.trace(model.to(dtype), batch, ["attn.weights"])[1].certify()
    assert len(found) == (4 if family["kind"] == "seq2seq" else 2)
    assert all(each.ratio < (1.0 if dtype == torch.float64 else 0.5) for each in found), found


FAULTY: dict[str, Any] = {
    "scaled twice": lambda i: i._replace(q=i.q * i.q.shape[-1] ** -0.5),
    "not scaled": lambda i: i._replace(q=i.q * i.q.shape[-1] ** 0.5),
    "no mask": lambda i: i._replace(args=i.args._replace(mask=None)),
    "mask off by one": lambda i: i._replace(args=i.args._replace(mask=None if i.args.mask is None else i.args.mask.roll(1, -1))),
    "no softcap": lambda i: i._replace(args=i.args._replace(softcap=None)),
    "no bias": lambda i: i._replace(args=i.args._replace(bias=None)),
    "no sink": lambda i: i._replace(args=i.args._replace(sinks=None)),
    "wrong head": lambda i: i._replace(q=i.q.roll(1, 1)),
    "wrong group": lambda i: i._replace(k=i.k.roll(2, 1)),
    "other texts": lambda i: i._replace(q=i.q.flip(0), k=i.k.flip(0)),
}
"""Faults of the recomputation, as changes of its inputs."""


@pytest.mark.parametrize("fault", [*FAULTY, "zero map", "sign-flipped map"])
def test_a_fault_of_the_recomputation_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of(FAMILIES[3], attention={"softcap": 1.5, "sinks": True}, position="relative")
    a, address = whole(model.float(), batch), "decoder.blocks.1.attn"
    assert certify(a, address).ok
    real = AttentionInputs.weights

    def weights(inputs: AttentionInputs) -> Tensor:
        if fault in FAULTY:
            changed = FAULTY[fault](inputs)
            return attention_weights(AttentionInputs.scores(changed), changed.args)
        return real(inputs) * (0.0 if fault == "zero map" else -1.0)

    monkeypatch.setattr(AttentionInputs, "weights", weights)
    found = certify(a, address)
    assert not found.ok and found.ratio > 100
    with pytest.raises(CertificationError, match=r"decoder.blocks.1.attn: expected weights that give the head output, found an error of"):
        found.check()


@pytest.mark.parametrize("cause", [*FAULTS])
def test_the_cause_of_a_fault_of_the_kernel_is_named(cause: str) -> None:
    """The recorded head outputs are replaced by those of a kernel with the fault."""
    model, batch = model_of(FAMILIES[3], attention={"softcap": 1.5, "sinks": True}, position="relative")
    a, address = whole(model.float(), batch), "decoder.blocks.1.attn"
    inputs = AttentionInputs.of(a, address)
    wrong = FAULTS[cause](inputs).weights() @ a[f"{address}.v"].repeat_interleave(2, 1)
    faulty = Activations(model, batch, {**a.recorded, f"{address}.z": wrong})
    found = certify(faulty, address)
    assert not found.ok and found.cause == cause


def test_row_sums_find_a_wrong_map_where_all_values_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of(FAMILIES[0] | {"n_kv_heads": 6}, position="learned")
    layer = model.get_submodule("decoder.blocks.1.attn")
    with torch.no_grad():
        layer.v.weight.zero_()
    layer.v.bias = nn.Parameter(torch.ones_like(layer.v.weight[:, 0]))
    a, address = whole(model.float(), batch), "decoder.blocks.1.attn"
    assert certify(a, address).with_logsumexp and certify(a, address).ok
    real_weights, real_sums = AttentionInputs.weights, AttentionInputs.logsumexp
    sharper = FAULTS["the kernel did not divide the scores by sqrt(d_head)"]
    monkeypatch.setattr(AttentionInputs, "weights", lambda i: real_weights(sharper(i)))
    assert certify(a, address).ok, "A V alone: rows of a wrong map have the sum 1 too"
    monkeypatch.setattr(AttentionInputs, "logsumexp", lambda i: real_sums(sharper(i)))
    assert not certify(a, address).ok


@pytest.mark.parametrize("fields", [{"position": "learned"}, {"position": "alibi"}, {"position": "rotary", "n_kv_heads": 2}], ids=str)
def test_logsumexps_of_the_kernel_are_those_of_a_trace(fields: dict[str, Any]) -> None:
    model, batch = model_of(FAMILIES[0], **fields)
    a, address = whole(model, batch), "decoder.blocks.0.attn"
    inputs = AttentionInputs.of(a, address)
    found = kernel_logsumexp(inputs, a.of_heads(f"{address}.v", 6, None))
    assert found is not None and torch.allclose(found[0], a[f"{address}.z"], atol=1e-12)
    visible = inputs.visible_rows().expand_as(found[1])
    assert visible.any() and torch.allclose(found[1][visible], a[f"{address}.logsumexp"][visible], atol=1e-12)


def test_a_fault_of_a_feature_that_the_layer_lacks_is_no_cause() -> None:
    model, batch = model_of(ENCODERS[0], position="learned")
    a, address = whole(model.float(), batch), "encoder.blocks.0.attn"
    z = a[f"{address}.z"]
    moved = Activations(model, batch, {**a.recorded, f"{address}.z": z + 1e-3 * z.roll(1, -1)})
    found = certify(moved, address)
    assert not found.ok and found.cause == ""


def test_a_kernel_that_gives_nothing_is_named() -> None:
    model, batch = model_of(FAMILIES[3])
    a, address = whole(model.float(), batch), "decoder.blocks.0.attn"
    faulty = Activations(model, batch, {**a.recorded, f"{address}.z": torch.zeros_like(a[f"{address}.z"])})
    assert certify(faulty, address).cause == "the head outputs are 0"


@pytest.mark.parametrize("number", every(12, [n for n, fields in enumerate(SET_TEXTS) if "recurrent" not in fields["kind"]]))
def test_the_rest_follows_from_the_residual_streams(number: int) -> None:
    """A trace of the streams alone gives every quantity of the pass, except in blocks where the stream is not enough."""
    config = described(SET_TEXTS[number])
    model, batch = built(config), batch_for(config)
    a = whole(model, batch)
    _, found = transom.trace(model, batch, ["logits"], store="residuals")
    streams = {address for address in found.activations.recorded if ".resid" in address}
    assert streams and not any(address.endswith((".q", ".z", ".norm.x", ".hidden")) for address in found.activations.recorded)
    mixed = any(".value_residuals" in name for name, _ in model.named_modules() if name.endswith("value_residuals.0"))
    for each in list_names(config):
        expected, value = a.get(each.address), found.activations.get(each.address)
        routed = any(getattr(module, "routed", False) for module in model.modules())
        if expected is not None and not mixed and not routed and not each.address.startswith(("pooled", "last_hidden", "transform_norm")):
            assert value is not None, each.address
            assert torch.allclose(value.double(), expected.double(), rtol=1e-9, atol=1e-10), each.address


def test_positions_of_selected_tokens_are_those_in_the_text() -> None:
    """There, the stream before the first block is the embedding."""
    model, batch = model_of(FAMILIES[3], depth={"kind": "mod", "capacity": 0.5, "every": 1})
    torch.nn.init.normal_(model.get_parameter("decoder.blocks.0.depth.map.weight"), generator=torch.Generator().manual_seed(1))
    names = ["decoder.blocks.0.resid_pre", "embedding.resid", "decoder.blocks.0.attn.k"]
    _, found = transom.trace(model, batch, names)
    places, x = found.token_positions("resid_pre"), found["embedding.resid"]
    real = places[..., 1] >= 0
    text, position = places[real].unbind(-1)
    assert 0 < len(text) < x[..., 0].numel()
    assert torch.equal(found["resid_pre"][real], x[text, position])
    assert found.token_positions("embedding.resid")[1].tolist() == [[1, place] for place in range(x.shape[1])]
    with pytest.raises(ConfigError, match=r"found 'attn.k', whose axes are batch, kv_heads, key, d_head; name another"):
        found.token_positions("attn.k")
    _, part = transom.trace(model, batch, names[:1], positions=[1])
    assert torch.equal(part.token_positions("resid_pre"), places[:, [1]])


def test_positions_of_the_tokens_of_an_expert_are_those_in_the_text() -> None:
    """Its hidden units follow from the input of the mixture at these."""
    experts = {"kind": "moe", "expert": {"kind": "relu"}, "n_experts": 3, "top_k": 2, "n_shared_experts": 1}
    model, batch = model_of(FAMILIES[3], feed_forward=experts)
    _, found = transom.trace(model, batch, ["*.experts.*.hidden", "*.shared.hidden", "*.ff_residual.norm.out"], blocks=[0])
    x, n_experts = found["ff_residual.norm.out"], 0
    for address in (address for address in found if address.endswith(".hidden")):
        text, position = found.token_positions(address).unbind(-1)
        expert = found.activations.module(address.removesuffix(".hidden"))
        assert torch.allclose(found[address], expert.up(x[text, position]).relu())
        n_experts += 1
    assert n_experts == 4 - len(found.idle)
