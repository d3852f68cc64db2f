"""Optimizers against the papers' updates written out, and who is decayed."""

import pytest
import torch
from torch import nn

from transom.config.training import Adam, AdamW, Sgd
from transom.training.optimizer import build_optimizer


def one(brick: Sgd | Adam | AdamW) -> tuple[nn.Linear, list[torch.Tensor]]:
    """Take three steps with rate 0.1 on given gradients; return the layer and the weights after each."""
    layer = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(layer.weight, 1.0)
    optimizer = build_optimizer(layer, brick)
    seen = []
    for gradient in (0.5, -2.0, 1.0):
        optimizer.param_groups[0]["lr"] = 0.1
        layer.weight.grad = torch.full_like(layer.weight, gradient)
        optimizer.step()
        seen.append(layer.weight.detach().clone())
    return layer, seen


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adam_and_adamw_are_their_equations(decay: float) -> None:
    brick = AdamW(beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=decay) if decay else Adam(beta1=0.8, beta2=0.9, eps=1e-3)
    _, seen = one(brick)
    w, m, v = 1.0, 0.0, 0.0
    for t, (g, weight) in enumerate(zip((0.5, -2.0, 1.0), seen, strict=True), 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        w -= 0.1 * decay * w
        w -= 0.1 * (m / (1 - 0.8**t)) / ((v / (1 - 0.9**t)) ** 0.5 + 1e-3)
        assert weight.flatten().tolist() == pytest.approx([w, w], abs=1e-12)


def test_sgd_is_its_equation() -> None:
    _, seen = one(Sgd(momentum=0.5, weight_decay=0.0))
    w, u = 1.0, 0.0
    for g, weight in zip((0.5, -2.0, 1.0), seen, strict=True):
        u = 0.5 * u + g
        w -= 0.1 * u
        assert weight.flatten().tolist() == pytest.approx([w, w])


def test_adamw_decays_matrices_only() -> None:
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3, bias=False))
    model[3].weight = model[0].weight  # a tied output map
    groups = build_optimizer(model, AdamW(weight_decay=0.1)).param_groups
    assert [len(g["params"]) for g in groups] == [1, 4]
    assert groups[0]["params"][0] is model[1].weight
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0]
