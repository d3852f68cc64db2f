"""Scale and soft-cap of the logits, from the layer to the losses of the objectives."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.combinations import FURTHER_ENCODERS, FURTHER_WRITERS, batch_for, described
from tests.models.test_combinations import built
from transom.config.model import DecoderConfig
from transom.config.training import EarlyExitLossConfig
from transom.layers.output_projection import OutputProjection, build_output_projection
from transom.training.objectives.early_exit import EarlyExitLoss
from transom.training.objectives.objective import CrossEntropy, forward_pass

CAPPED: list[dict[str, Any]] = [fields for fields in FURTHER_WRITERS + FURTHER_ENCODERS if "logit_softcap" in fields]


def by_hand(hidden: Tensor, layer: nn.Linear, scale: float, cap: float) -> Tensor:
    """Compute the logits element by element."""
    z = torch.einsum("...d,vd->...v", hidden, layer.weight)
    z = scale * (z if layer.bias is None else z + layer.bias)
    return cap * (1 - 2 / (1 + (2 * z / cap).exp()))  # tanh(x) = 1 - 2 / (1 + e^(2 x))


def test_without_scale_and_cap_the_layer_is_a_plain_one() -> None:
    config = DecoderConfig(vocab_size=9, d_model=8, n_heads=2)
    assert type(build_output_projection(config, 9)) is nn.Linear
    for fields in ({"logit_scale": 0.5}, {"logit_softcap": 30.0}):
        assert type(build_output_projection(config.model_copy(update=fields), 9)) is OutputProjection


@pytest.mark.parametrize("fields", CAPPED, ids=lambda fields: fields["kind"])
def test_logits_and_their_loss_are_scaled_and_capped(fields: dict[str, Any]) -> None:
    config = described(fields)
    model, batch = built(config), batch_for(config)
    scale, cap = fields.get("logit_scale", 1.0), fields["logit_softcap"]
    logits = by_hand(model.last_hidden_state(batch), model.unembedding, scale, cap)
    assert torch.allclose(model(batch), logits, rtol=0, atol=1e-12)
    assert 0.4 * cap < logits.abs().max() < cap
    found = CrossEntropy(0.1).loss(forward_pass(model, batch))
    expected = F.cross_entropy(logits[batch.loss_mask], batch.labels[batch.loss_mask], label_smoothing=0.1, reduction="sum")
    assert torch.allclose(found.loss, expected, rtol=0, atol=1e-12)


def test_early_exits_are_scaled_and_capped() -> None:
    config = described(CAPPED[1] | {"logit_scale": 0.4, "tie_embeddings": False})
    model: Any = built(config)
    batch = batch_for(config)
    objective = EarlyExitLoss(CrossEntropy(0.0), model, EarlyExitLossConfig(kind="uniform"))
    forward = forward_pass(model, batch, objective.sites)
    total = torch.zeros((), dtype=torch.float64)
    for hidden in (model.decoder.norm(forward.activations[objective.sites[0]][0]), forward.hidden / 0.4):
        logits = by_hand(hidden, model.unembedding, 0.4, 0.7)[batch.loss_mask]
        total = total + F.cross_entropy(logits, batch.labels[batch.loss_mask], reduction="sum") / 2
    assert torch.allclose(objective.loss(forward).backward_loss, total, rtol=0, atol=1e-12)
