"""Traces give the numbers of the pass for chosen blocks, heads and positions, and certify what they recompute."""

from typing import Any

import pytest
import torch
from torch import Tensor

import transom
from tests.models.combinations import ENCODERS, FAMILIES, SIZES, batch_for, described
from tests.models.test_combinations import built
from transom.errors import ConfigError
from transom.inspection.activations import Activations
from transom.inspection.certify import FAULTS, CertificationError, certify
from transom.inspection.derive_attention import AttentionInputs
from transom.layers.attention import attention_weights
from transom.layers.observe import ActivationRecorder
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
    names = ["scores", "masked_scores", "logsumexp", "dot_products", "weights", "z", "head_out", "resid_post", "q_proj"]
    logits, found = transom.trace(model, batch, names, blocks=[1], heads=[4, 1], positions=[2, 0])
    assert torch.equal(logits, a["logits"])
    assert {address.split(".blocks.")[1][0] for address in found} == {"1"}
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
def test_what_does_not_exist_is_refused_before_the_pass(options: dict[str, Any], expected: str) -> None:
    model, batch = model_of(FAMILIES[3])
    model.forward = None  # type: ignore[assignment,method-assign]  # nothing runs
    with pytest.raises(ConfigError, match=expected):
        transom.trace(model, batch, **options)


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
    needed = transom.trace(model, batch, ["resid_post"])[1]
    with pytest.raises(ConfigError, match="did not record"):
        needed.activations["decoder.blocks.1.attn.weights"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", [*FAMILIES, *ENCODERS], ids=lambda each: each["kind"])
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


def test_a_kernel_that_gives_nothing_is_named() -> None:
    model, batch = model_of(FAMILIES[3])
    a, address = whole(model.float(), batch), "decoder.blocks.0.attn"
    faulty = Activations(model, batch, {**a.recorded, f"{address}.z": torch.zeros_like(a[f"{address}.z"])})
    assert certify(faulty, address).cause == "the head outputs are 0"
