"""The compiled model is the eager one."""

import copy
from typing import Any

import pytest
import torch

import transom
from tests.inspection.edits.by_hand import build
from tests.models.tiny import seq2seq
from transom.data.batch import PaddedSequences, TranslationBatch
from transom.inspection.activation_sites import list_sites
from transom.inspection.edits.scope import EditNeverFiredError
from transom.inspection.lenses.diff import diff
from transom.models.build import build_model

TRACER = "ignore:.*torch.autograd.function.Function.* should not be instantiated:DeprecationWarning"
"""PyTorch's tracer creates such an instance for each custom autograd function; our code does not."""

INDUCTOR = "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
"""PyTorch's compiler uses it at import; our code does not."""


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
@pytest.mark.parametrize(
    ("backend", "placement"),
    [
        ("aot_eager", "post"),
        ("aot_eager", "pre"),
        pytest.param("inductor", "pre", marks=pytest.mark.long),
        pytest.param("inductor", "post", marks=pytest.mark.soak),
    ],
)
def test_logits_and_gradients_agree(backend: str, placement: str) -> None:
    torch.manual_seed(0)
    model = build_model(seq2seq(d_model=16, d_ff=32, dropout=0.0, norm_placement=placement)).train()
    source, target = PaddedSequences.pad([[5, 6, 7, 2], [8, 2]]), PaddedSequences.pad([[1, 9], [1, 4]])
    batch = TranslationBatch(source, target, target.tokens, (0, 1))
    results = []
    for forward in (model, torch.compile(model, backend=backend)):
        model.zero_grad()
        logits = forward(batch)
        logits.square().sum().backward()
        results.append([logits.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
@torch.no_grad()
def test_frequencies_that_depend_on_the_length_of_each_text_agree() -> None:
    position = {"kind": "rotary", "rope_theta": [50.0, 500.0], "rope_scaling": {"kind": "dynamic", "factor": 4.0}}
    torch.manual_seed(0)
    model = build_model(seq2seq(d_model=16, d_ff=32, max_seq_len=16, position=position)).eval()
    source, target = PaddedSequences.pad([[5, 6, 7, 8, 9, 4, 2], [8, 2]]), PaddedSequences.pad([[1, 9, 4, 5, 6, 7], [1, 4]])
    batch = TranslationBatch(source, target, target.tokens, (0, 1))
    torch.testing.assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(batch), model(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
@torch.no_grad()
def test_a_compiled_model_is_traced() -> None:
    torch.manual_seed(0)
    model = build_model(seq2seq(d_model=16, d_ff=32)).eval()
    target = PaddedSequences.pad([[1, 9, 4], [1, 4]])
    batch = TranslationBatch(PaddedSequences.pad([[5, 6, 7, 2], [8, 2]]), target, target.tokens, (0, 1))
    names = ["attn.weights", "cross.weights", "resid_post", "ff.pre"]
    plain, found = (transom.trace(each, batch, names)[1] for each in (model, torch.compile(model, backend="aot_eager")))
    assert list(found) == list(plain) and len(found) == 7
    for address, x in plain.items():
        torch.testing.assert_close(found[address], x, rtol=1e-4, atol=1e-5)
    assert all(each.ok for each in found.certify())


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
@torch.no_grad()
def test_a_compiled_model_is_edited() -> None:
    model, batch = build("llama")
    compiled = torch.compile(model.float(), backend="aot_eager")
    plain = model(batch)
    torch.testing.assert_close(compiled(batch), plain)
    edits: list[dict[str, Any]] = [
        {"kind": "ablate-heads", "blocks": [0], "heads": [1]},
        {"kind": "knock-out-key", "blocks": [1], "queries": [3], "keys": [0]},
        {"kind": "scale", "name": "decoder.blocks.0.resid_post", "factor": 2.0, "positions": [2]},
        {"kind": "ablate-neurons", "blocks": [1], "neurons": [3], "value": "mean"},
        {"kind": "no-residual", "blocks": [1], "sublayer": "ff"},
    ]
    with transom.edits(model, edits):
        expected = model(batch)
    with transom.edits(compiled, edits) as scope:
        for _ in range(3):
            torch.testing.assert_close(compiled(batch), expected)
    assert scope.fired == (3,) * len(edits)
    torch.testing.assert_close(compiled(batch), plain)
    with pytest.raises(EditNeverFiredError), transom.edits(compiled, [{**edits[0], "positions": [7]}]):
        torch.testing.assert_close(compiled(batch), plain)


@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
def test_a_compiled_model_differs_by_rounding() -> None:
    model, batch = build("llama")
    compiled: Any = torch.compile(model.float(), backend="aot_eager")
    found = diff(model, compiled, batch)
    assert found.first is None and not found.weights and len(found.sites) == len(list_sites(model.config)) + 1
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_parameter("decoder.blocks.1.attn.o.weight")[0, 0] += 0.05
    parted = diff(compiled, other, batch).first
    assert parted is not None and parted.address == "decoder.blocks.1.resid_mid"
