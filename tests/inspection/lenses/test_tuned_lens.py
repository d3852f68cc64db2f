"""A tuned lens is closer to the model's own distribution than the logit lens, never worse, and belongs to one model."""

from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.models.combinations import ENCODERS, FAMILIES, SIZES, SOURCE, TARGET, batch_for, described, with_tokens
from tests.models.test_combinations import built
from tests.tiers import every
from transom.checkpoints.tensors import serialize_tensors
from transom.errors import CheckpointError
from transom.inspection.lenses import tuned_lens
from transom.inspection.lenses.logit_lens import logit_lens
from transom.inspection.lenses.tuned_lens import TunedLens, load_tuned_lens, train_tuned_lens
from transom.models.base import Network


def model_and_batches(family: dict[str, Any]) -> tuple[Network, list[Any], list[Any]]:
    """Build a model, training batches and held-out ones, of random tokens."""
    config = described(SIZES | {"d_ff": 8, "norm_placement": "pre"} | family)
    draw = torch.Generator().manual_seed(1)

    def batch() -> Any:
        sides = [with_tokens(side, torch.randint(3, 9, side.tokens.shape, generator=draw)) for side in (TARGET, SOURCE)]
        return batch_for(config, *sides)

    return built(config).float(), [batch() for _ in range(8)], [batch() for _ in range(4)]


@pytest.mark.parametrize("family", every(3, [FAMILIES[3], FAMILIES[0], ENCODERS[3]]), ids=lambda each: each["kind"])
def test_a_tuned_lens_is_closer_on_held_out_data(family: dict[str, Any]) -> None:
    model, train, held_out = model_and_batches(family)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    found = train_tuned_lens(model, cycle(train), held_out, n_steps=40)
    assert len(found.streams) == 2 and all(tuned <= plain for plain, tuned in zip(found.logit_kl, found.tuned_kl, strict=True))
    assert sum(found.tuned_kl) < 0.95 * sum(found.logit_kl)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@torch.no_grad()
def test_distances_are_those_of_the_lenses() -> None:
    model, train, held_out = model_and_batches(FAMILIES[3])
    found = train_tuned_lens(model, cycle(train), held_out, n_steps=5)
    for translate, expected in ((found.lens.translate, found.tuned_kl), (None, found.logit_kl)):
        totals = torch.zeros(2)
        for batch in held_out:
            lens = logit_lens(model, batch, **({"translate": translate} if translate else {}))
            totals += torch.stack([kl[batch.decoder_input.segments > 0].sum() for kl in lens.kl[:2]])
        n = sum(int((batch.decoder_input.segments > 0).sum()) for batch in held_out)
        assert (totals / n).tolist() == pytest.approx(expected, rel=1e-4)


def test_a_map_that_is_worse_is_replaced_by_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ascent(torch.optim.SGD):
        """Steps away from the minimum."""

        def __init__(self, parameters: Any, rate: float) -> None:
            super().__init__(parameters, rate, maximize=True)

    monkeypatch.setattr(tuned_lens.torch.optim, "Adam", Ascent)
    model, train, held_out = model_and_batches(FAMILIES[3])
    found = train_tuned_lens(model, cycle(train), held_out, n_steps=3)
    assert found.tuned_kl == found.logit_kl and not found.lens.weight.any() and not found.lens.bias.any()


def test_the_identity_is_the_logit_lens_and_a_map_is_affine() -> None:
    model, (batch, *_), _ = model_and_batches(FAMILIES[3])
    identity = TunedLens.identity(model)
    assert torch.equal(logit_lens(model, batch, translate=identity.translate).kl, logit_lens(model, batch).kl)
    torch.manual_seed(2)
    lens = identity._replace(weight=torch.randn_like(identity.weight), bias=torch.randn_like(identity.bias))
    x = torch.randn(3, 12)
    assert torch.allclose(lens.translate(1, x), x + F.linear(x, lens.weight[1], lens.bias[1]), atol=1e-6)
    assert lens.translate(2, x) is x, "the stream after the last block"


def test_a_lens_is_saved_and_refused_by_another_model(tmp_path: Path) -> None:
    model, train, held_out = model_and_batches(FAMILIES[3])
    lens, path = train_tuned_lens(model, cycle(train), held_out, n_steps=5).lens, tmp_path / "lens.safetensors"
    lens.save(path)
    found = load_tuned_lens(model, path)
    assert torch.equal(found.weight, lens.weight) and torch.equal(found.bias, lens.bias) and found.weights == lens.weights
    with torch.no_grad():
        model.unembedding.weight[0, 0] += 1
    with pytest.raises(CheckpointError, match="expected a tuned lens of this model's weights, found one of others"):
        load_tuned_lens(model, path)
    path.write_bytes(serialize_tensors({"weight": lens.weight}))
    with pytest.raises(CheckpointError, match="expected a tuned lens, found another safetensors file"):
        load_tuned_lens(model, path)
    with pytest.raises(CheckpointError, match="expected a tuned lens, found no file"):
        load_tuned_lens(model, tmp_path / "none")
