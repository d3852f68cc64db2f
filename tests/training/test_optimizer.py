"""Optimizers against the papers' updates written out, and who is decayed."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.decoding.models import tiny_model
from transom.config.adapter import LoraConfig
from transom.config.model import DecoderConfig
from transom.config.training import AdamConfig, AdamWConfig, MuonConfig, SgdConfig
from transom.errors import ConfigError
from transom.models.apply_lora import apply_lora
from transom.models.build import build_model
from transom.training.optimizer import build_optimizer, newton_schulz_orthogonalize
from transom.training.train_state import load_optimizer, optimizer_tensors


def one(component: SgdConfig | AdamConfig | AdamWConfig) -> tuple[nn.Linear, list[torch.Tensor]]:
    """Take three steps with rate 0.1 on given gradients; return the layer and the weights after each."""
    layer = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(layer.weight, 1.0)
    optimizer = build_optimizer(layer, component)
    seen = []
    for gradient in (0.5, -2.0, 1.0):
        optimizer.param_groups[0]["lr"] = 0.1
        layer.weight.grad = torch.full_like(layer.weight, gradient)
        optimizer.step()
        seen.append(layer.weight.detach().clone())
    return layer, seen


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adam_and_adamw_are_their_equations(decay: float) -> None:
    component = AdamWConfig(beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=decay) if decay else AdamConfig(beta1=0.8, beta2=0.9, eps=1e-3)
    _, seen = one(component)
    w, m, v = 1.0, 0.0, 0.0
    for t, (g, weight) in enumerate(zip((0.5, -2.0, 1.0), seen, strict=True), 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        w -= 0.1 * decay * w
        w -= 0.1 * (m / (1 - 0.8**t)) / ((v / (1 - 0.9**t)) ** 0.5 + 1e-3)
        assert weight.flatten().tolist() == pytest.approx([w, w], abs=1e-12)


def test_sgd_is_its_equation() -> None:
    _, seen = one(SgdConfig(momentum=0.5, weight_decay=0.0))
    w, u = 1.0, 0.0
    for g, weight in zip((0.5, -2.0, 1.0), seen, strict=True):
        u = 0.5 * u + g
        w -= 0.1 * u
        assert weight.flatten().tolist() == pytest.approx([w, w])


def test_adamw_decays_matrices_only() -> None:
    model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3, bias=False))
    model[3].weight = model[0].weight  # a tied output map
    groups = build_optimizer(model, AdamWConfig(weight_decay=0.1)).param_groups
    assert [len(g["params"]) for g in groups] == [1, 4]
    assert groups[0]["params"][0] is model[1].weight
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0]


def nearly_orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """U p(S) V^T, p being five times a s + b s^3 + c s^5 (Jordan et al. 2024), from the singular values."""
    u, s, v = torch.linalg.svd(matrix / matrix.norm(), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s @ v


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, gradients: list[dict[str, torch.Tensor]]) -> None:
    """Take a step of rate 0.01 for each set of gradients."""
    for named in gradients:
        for name, p in model.named_parameters():
            p.grad = named[name].clone()
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        optimizer.step()


def drawn(model: nn.Module, n: int) -> list[dict[str, torch.Tensor]]:
    return [{name: torch.randn_like(p) for name, p in model.named_parameters()} for _ in range(n)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_muon_is_its_equation_on_the_blocks_and_adamw_on_the_rest(dtype: torch.dtype) -> None:
    model = tiny_model(11)
    component = MuonConfig(momentum=0.8, weight_decay=0.3)
    by_muon = {name for name, p in model.named_parameters() if ".blocks." in name and p.ndim == 2}
    assert {name.rsplit(".", 2)[1] for name in by_muon} == {"q", "k", "v", "o", "up", "down"}
    reference = copy.deepcopy(model)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradients = drawn(model, 2)
    steps(model, build_optimizer(model, component, dtype), gradients)
    steps(reference, build_optimizer(reference, AdamWConfig(weight_decay=0.3)), gradients)
    others = dict(reference.named_parameters())
    for name, p in model.named_parameters():
        if name in by_muon:
            w, m = start[name], torch.zeros_like(p)
            for g in (named[name] for named in gradients):
                m = 0.8 * m + 0.2 * g
                size = 0.2 * max(p.shape) ** 0.5
                w = (1 - 0.01 * 0.3) * w - 0.01 * size * nearly_orthogonal(g + 0.8 * (m - g))
            assert (p - w).norm() < (0.03 if dtype == torch.bfloat16 else 1e-10) * (w - start[name]).norm()
            assert (p - start[name]).square().mean().sqrt() < 2 * 0.01 * 0.3, "two updates, each of AdamWConfig's usual size, 0.2"
        else:
            assert torch.equal(p, others[name]), name


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (1, 5)])
def test_orthogonal_leaves_zeros_alone_and_flattens_singular_values(shape: tuple[int, int]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    values = torch.linalg.svdvals(newton_schulz_orthogonalize(x))
    assert values.min() > 0.6 and values.max() < 1.3
    torch.testing.assert_close(newton_schulz_orthogonalize(7 * x), newton_schulz_orthogonalize(x), rtol=1e-12, atol=1e-12)
    assert not newton_schulz_orthogonalize(torch.zeros(shape)).any()


@pytest.mark.parametrize(
    ("component", "maps"),
    [
        ({"feed_forward": {"kind": "moe", "n_experts": 3}}, {"q", "k", "v", "o"}),
        ({"depth": "mod"}, {"q", "k", "v", "o", "gate", "up", "down"}),
    ],
)
def test_experts_and_routers_are_not_for_muon(component: dict[str, Any], maps: set[str]) -> None:
    model = build_model(DecoderConfig.model_validate({"vocab_size": 9, "d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 8} | component))
    group = {id(p) for p in build_optimizer(model, MuonConfig()).param_groups[0]["params"]}
    assert {name.rsplit(".", 2)[1] for name, p in model.named_parameters() if id(p) in group} == maps


def test_low_rank_maps_are_for_muon() -> None:
    model = tiny_model(11)
    apply_lora(model, LoraConfig(rank=2, target_modules=("attn.q",)))
    groups = build_optimizer(model, MuonConfig()).param_groups
    assert [len(group["params"]) for group in groups] == [2 * 4, 0, 0]


def test_muon_put_back_goes_on_the_same() -> None:
    model = tiny_model(11)
    optimizer, gradients = build_optimizer(model, MuonConfig()), drawn(model, 4)
    steps(model, optimizer, gradients[:2])
    other = copy.deepcopy(model)
    another = build_optimizer(other, MuonConfig())
    load_optimizer(other, another, {name: x.clone() for name, x in optimizer_tensors(model, optimizer).items()})
    steps(model, optimizer, gradients[2:])
    steps(other, another, gradients[2:])
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


def test_muon_without_matrices_of_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.optimizer = 'muon': expected trainable matrices .*, found none; use 'adamw'"):
        build_optimizer(nn.Sequential(nn.Linear(3, 3)), MuonConfig())
