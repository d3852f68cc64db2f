"""A pass under autocast: what is derived from its sites is what the modules of the same pass computed in bfloat16."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import transom
from tests.inspection.test_names import from_modules, image_batch, module_outputs
from tests.models.combinations import FAMILIES, SET_TEXTS, VOCAB, batch_for, described
from tests.models.combinations import SIZES as SIZES_OF_TEXTS
from tests.models.test_combinations import built
from tests.models.test_vision import SET_NETWORKS
from tests.models.test_vision import described as described_network
from transom.inspection.gradients import default_loss
from transom.inspection.probe import TraceProbe
from transom.inspection.trace import Trace, open_trace, trace
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network

ROUNDING = 2.0**-7
"""Relative rounding error of bfloat16, which has 8 significant bits."""


def bf16() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def close(found: Tensor, expected: Tensor, n: float = 1.0) -> bool:
    """Return whether two tensors agree within ``n`` roundings of the largest value of bfloat16."""
    finite = expected.isfinite()
    scale = expected[finite].abs().max() if bool(finite.any()) else torch.tensor(0.0)
    return bool(((found.double() - expected.double())[finite].abs() <= n * ROUNDING * scale.double() + 1e-30).all())


def model_of(kind: str) -> tuple[Network, Any]:
    """Build a decoder, a translator or a Vision Transformer in float32, and its batch."""
    if kind == "vision":
        number = next(i for i, fields in enumerate(SET_NETWORKS) if fields["kind"] == "vision-transformer")
        config = described_network(SET_NETWORKS[number])
        images = image_batch(config)
        return built(config).float(), images.__class__(images.pixels.float(), images.labels, images.sample_ids)
    texts = described(SET_TEXTS[{"decoder": 4, "seq2seq": 6, "linear attention": 18, "experts": 3, "recurrent": 25}[kind]])
    return built(texts).float(), batch_for(texts)


@pytest.mark.parametrize("kind", ["decoder", "seq2seq", "vision", "linear attention", "experts", "recurrent"])
@torch.no_grad()
def test_quantities_of_a_pass_under_autocast_are_those_of_its_modules(kind: str) -> None:
    """They are read after the autocast context has ended."""
    model, batch = model_of(kind)
    with bf16(), module_outputs(model) as (inputs, outputs):
        logits, found = trace(model, batch, ["*"], store="all")
    modules, compared = from_modules(model, inputs, outputs), set[str]()
    assert logits.dtype == torch.bfloat16 and not torch.is_autocast_enabled("cpu")
    for address, x in found.items():
        assert not x.isnan().any(), address
        if address in modules:
            assert x.dtype == modules[address].dtype, address
            assert close(x, modules[address][: len(x)] if ".experts." in address else modules[address]), address
            compared.add(address.rpartition(".")[2])
    assert compared >= ({"out", "last_hidden"} if kind == "recurrent" else {"q_proj", "k_proj", "v_proj", "out", "pre"})
    certificates = found.certify()
    assert all(each.ok for each in certificates) and (certificates or kind == "recurrent")


@torch.no_grad()
def test_a_pass_without_autocast_is_read_without_it() -> None:
    """Also in an autocast context that begins after the pass."""
    model, batch = model_of("decoder")
    _, found = trace(model, batch, ["attn.q_proj", "attn.weights"])
    _, expected = trace(model, batch, ["attn.q_proj", "attn.weights"])
    expected_values = dict(expected)
    with bf16():
        assert all(torch.equal(found[address], x) for address, x in expected_values.items())
    assert {x.dtype for x in expected_values.values()} == {torch.float32}


@pytest.mark.parametrize("kind", ["decoder", "seq2seq", "vision"])
def test_gradients_under_autocast_follow_the_chain_rule(kind: str) -> None:
    """A dA sums to Z dZ per row; the gradient of W_O is d(out)^T Concat(z), as the trainer's backward pass gives it."""
    model, batch = model_of(kind)
    model.requires_grad_()
    names = [f"attn.{name}{end}" for name in ("weights", "z", "out", "concat", "scores", "q_proj") for end in ("", ".grad")]
    with bf16():
        _, found = trace(model, batch, [*names, "logits.grad"])
        again = model(batch)
        gradients: Any = found.activations.gradients
        loss = default_loss(model, again, *gradients.answers)
    loss.backward()
    for path in {address.rpartition(".attn.")[0] + ".attn" for address in found if ".attn." in address}:
        weights, d_weights, z, d_z = (found[f"{path}.{name}"].double() for name in ("weights", "weights.grad", "z", "z.grad"))
        assert close((weights * d_weights).sum(-1), (z * d_z).sum(-1), 4)
        d_out, concat = (found[f"{path}.{name}"].double().flatten(0, -2) for name in ("out.grad", "concat"))
        expected = model.get_submodule(f"{path}.o").weight.grad
        assert isinstance(expected, Tensor) and close(d_out.T @ concat, expected, 2)
        assert found[f"{path}.q_proj.grad"].dtype == torch.bfloat16


def test_a_trace_leaves_the_gradients_of_a_training_step_in_the_same_context() -> None:
    """Autocast would hand casts of weights that were made without gradients to the step."""
    model, batch = model_of("decoder")
    model.requires_grad_()
    with bf16():
        _, found = trace(model, batch, ["attn.q_proj", "logits"])
        assert found["decoder.blocks.0.attn.q_proj"].dtype == torch.bfloat16
        model(batch).float().square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for name, p in model.named_parameters() if name.endswith("attn.q.weight"))


@torch.no_grad()
def test_streams_of_a_pass_under_autocast_give_the_rest_also_from_files(tmp_path: Path) -> None:
    config = described(SIZES_OF_TEXTS | FAMILIES[3] | {"position": "rotary"})
    model, batch = built(config).float(), batch_for(config)
    with bf16():
        _, whole = trace(model, batch, ["*"], store="all")
        trace(model, batch, ["attn.weights", "probs"], store="residuals", folder=tmp_path)
    found = open_trace(model, tmp_path)
    assert found.activations.autocast == torch.bfloat16
    assert all(each.ok for each in found.certify()) and len(found.certify()) == 2
    for address in ("decoder.blocks.1.attn.q", "decoder.blocks.0.ff.hidden", "decoder.blocks.0.attn.out", "probs"):
        assert torch.equal(found.activations[address], whole[address]), address


@torch.no_grad()
def test_experts_in_bfloat16_have_no_padded_rows() -> None:
    """An expert of 100 tokens runs on 128 rows on a CPU."""
    model, _ = model_of("experts")
    batch = torch.randint(3, VOCAB, (40, 4), generator=torch.Generator().manual_seed(1))
    with bf16():
        _, found = trace(model, batch, ["*.experts.*", "ff.chosen", "*.experts.*.hidden.grad"], store="all")
    experts = {address.rpartition(".")[0] for address in found if ".experts." in address and not address.endswith(".grad")}
    padded = 0
    for path in experts:
        n = int((found[f"{path.rpartition('.experts.')[0]}.chosen"] == int(path.rpartition(".")[2])).any(-1).sum())
        padded += found.activations.recorded[f"{path}.hidden"].shape[0] > n
        assert {len(x) for address, x in found.items() if address.startswith(f"{path}.")} == {n}
        places = found.token_positions(f"{path}.hidden")
        assert places.shape == (n, 2)
    assert padded


SIZES = ["model.d_model=16", "model.n_heads=2", "model.d_ff=16", "model.n_encoder_layers=1", "model.n_decoder_layers=1"]


@pytest.mark.long
def test_a_probe_has_the_precision_of_the_run_and_leaves_its_weights(tmp_path: Path) -> None:
    seen = dict[str, Tensor]()

    def use(step: int, found: Trace) -> None:
        assert all(each.ok for each in found.certify()) and found.activations.autocast == torch.bfloat16
        recorder = ActivationRecorder(["*"])
        training = found.activations.model.training
        with torch.no_grad(), bf16():
            found.activations.model.eval()(found.activations.batch, recorder)
        found.activations.model.train(training)
        assert all(torch.equal(x, recorder.activations[address]) for address, x in found.items() if address in recorder.activations)
        seen[str(step)] = found["decoder.blocks.0.attn.q"]

    fields = ["model.dropout=0.3", "training.max_steps=3", "training.batch_tokens=64", "training.precision=bf16", *SIZES]
    probe = TraceProbe(["attn.weights", "*.resid_post", "attn.q", "attn.q_proj", "probs"], use, every=2)
    transom.train("reverse", tmp_path / "a", fields, callbacks=[probe])
    transom.train("reverse", tmp_path / "b", fields)
    assert probe.steps == [1, 2] and {x.dtype for x in seen.values()} == {torch.bfloat16}
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
