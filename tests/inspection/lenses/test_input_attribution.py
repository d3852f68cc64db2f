"""Contributions of tokens and patches are those of the definition, and integrated gradients are complete."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.models.combinations import ENCODERS, FAMILIES, SIZES, batch_for, described
from tests.models.test_combinations import built
from tests.tiers import every
from transom.config.vision import VisionTransformerConfig
from transom.data.batch import PaddedSequences
from transom.data.tokenizer.special_tokens import PAD
from transom.errors import ConfigError
from transom.inspection.lenses.input_attribution import input_attribution
from transom.models.base import Network

TARGET, SOURCE = PaddedSequences.pad([[1, 5, 8, 4]]), PaddedSequences.pad([[3, 4, 5, 6, 2]])
LSTM = {"kind": "recurrent-decoder", "vocab_size": 9, "max_seq_len": 16, "d_model": 12, "n_layers": 2, "cell": "lstm"}


def model_of(fields: dict[str, Any]) -> tuple[Network, Any]:
    config = described(fields)
    return built(config), batch_for(config, TARGET, SOURCE)


def decoder(**fields: Any) -> tuple[Any, Any]:
    return model_of(SIZES | {"d_ff": 8, "position": "learned", "norm_placement": "pre"} | FAMILIES[3] | fields)


def embedded(model: Any, baseline: str | None = None) -> Tensor:
    """Return the embedded text of a decoder, or with a baseline in place of every token."""
    table, tokens = model.embedding.tokens.weight.detach(), torch.tensor([1, 5, 8, 4])
    token = {None: table[tokens], "mean": table.mean(0).expand(4, -1), "padding": table[PAD].expand(4, -1), "zero": torch.zeros(4, 12)}
    return token[baseline] * model.embedding.scale + model.embedding.position.table.weight.detach()[:4]


def log_p(model: Any, batch: Any, x: Tensor) -> Tensor:
    """Compute the log-probability of token 3 at the last position from embedded tokens."""
    states = model.decoder(x[None], model.context(batch.decoder_input))
    result: Tensor = model.unembedding(states)[0, -1].log_softmax(-1)[3]
    return result


@pytest.mark.parametrize("baseline", every(2, ["mean", "padding", "zero"]))
def test_gradients_are_those_of_the_embedded_tokens(baseline: Any) -> None:
    model, batch = decoder()
    x, b = embedded(model), embedded(model, baseline)
    target = lambda logits: logits[:, -1].log_softmax(-1)[:, 3]  # noqa: E731
    found = input_attribution(model, batch, target=target, baseline=baseline, method="gradient-x-input")
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(log_p(model, batch, leaf), leaf)
    assert torch.allclose(found.values["target"], ((x - b) * gradient).sum(-1), atol=1e-12)
    assert found.answer == pytest.approx(log_p(model, batch, x).item()) and found.baseline == pytest.approx(log_p(model, batch, b).item())


def test_integrated_gradients_are_those_of_a_fine_sum() -> None:
    model, batch = decoder()
    x, b, n = embedded(model), embedded(model, "mean"), 1000
    leaf = (b + ((torch.arange(n, dtype=x.dtype) + 0.5) / n)[:, None, None] * (x - b)).requires_grad_()
    states = model.decoder(leaf, model.context(PaddedSequences.pad([[1, 5, 8, 4]] * n)))
    answers = model.unembedding(states)[:, -1].log_softmax(-1)[:, 3]
    summed = torch.autograd.grad(answers.sum(), leaf)[0].mean(0)
    found = input_attribution(model, batch, target=lambda logits: logits[:, -1].log_softmax(-1)[:, 3])
    expected = ((x - b) * summed).sum(-1)
    assert torch.allclose(found.values["target"], expected, atol=1e-3 * expected.abs().max().item())


@pytest.mark.parametrize(
    "fields",
    every(2, [*(SIZES | {"d_ff": 8} | family for family in (FAMILIES[0], ENCODERS[0], ENCODERS[2], ENCODERS[4])), LSTM]),
    ids=lambda each: each["kind"],
)
def test_the_sum_is_the_change_of_the_answer(fields: dict[str, Any]) -> None:
    model, batch = model_of(fields)
    found = input_attribution(model, batch)
    total = sum(x.sum().item() for x in found.values.values())
    assert found.complete and abs(total - (found.answer - found.baseline)) <= found.tolerance <= 1e-4 * max(1, abs(found.answer))
    assert found.steps >= 16 and set(found.values) == ({"source", "target"} if fields["kind"] == "seq2seq" else set(found.values))


def test_steps_are_added_until_the_sum_is_complete_and_patches_have_values(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 8, "image_size": 8, "patch_size": 4, "channels": 1, "classes": ("a", "b")}
    model = built(VisionTransformerConfig.model_validate({**sizes, "pooling": "cls", "norm_placement": "pre"}))
    pixels = torch.rand(1, 1, 8, 8, dtype=torch.float64)
    monkeypatch.setattr("transom.inspection.lenses.input_attribution.FIRST_STEPS", 1)
    found = input_attribution(model, pixels)
    assert found.complete and found.steps > 1
    assert found.values["image"].shape == (5,) and found.values["image"][0] == 0, "the class token keeps its value"
    with pytest.raises(ConfigError, match="baseline: expected mean or zero for an image, which has no padding, found padding"):
        input_attribution(model, pixels, baseline="padding")


def test_inputs_without_one_answer_are_refused() -> None:
    model, _ = decoder()
    with pytest.raises(ConfigError, match="inputs: expected one text or image, found 2"):
        input_attribution(model, torch.tensor([[1, 2], [1, 3]]))
    embedder, pairs = model_of(SIZES | {"d_ff": 8} | ENCODERS[-1])
    with pytest.raises(ConfigError, match="expected a model with token or patch embeddings and an answer per token, text or image"):
        input_attribution(embedder, pairs)
