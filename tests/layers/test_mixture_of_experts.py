"""Mixture of experts: both paths agree; capacity, padding and load balancing."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from transom.config.moe import MoeConfig
from transom.layers.context import LayerContext
from transom.layers.feed_forward import build_feed_forward
from transom.layers.mixture_of_experts import (
    PAD_MULTIPLE,
    MixtureOfExperts,
    all_experts,
    expert_load,
    grouped_experts,
    load_balancing_loss,
    router_z_loss_sum,
    update_router_bias,
)
from transom.layers.observe import ActivationRecorder, assign_addresses

CASES: list[dict[str, Any]] = [
    {},
    {"expert": "relu", "n_experts": 3, "top_k": 1, "norm_topk_prob": False},
    {"expert": {"kind": "gelu", "bias": True}, "n_shared_experts": 2, "scoring_func": "sigmoid", "load_balancing": "bias"},
    {"expert": "geglu", "n_experts": 4, "top_k": 4, "d_expert": 3},
    {"capacity_factor": 0.5, "n_experts": 4, "top_k": 3},
    {"capacity_factor": 1.0, "n_experts": 5, "norm_topk_prob": False, "scoring_func": "sigmoid"},
]


def mixture(fields: dict[str, Any], dtype: torch.dtype = torch.float64) -> MixtureOfExperts:
    """Build a layer of width 6 in training mode; a balancing bias is not 0."""
    torch.manual_seed(1)
    layer = build_feed_forward(MoeConfig.model_validate(fields), 6, 7, 0.0).to(dtype).train()
    assert isinstance(layer, MixtureOfExperts)
    if layer.bias is not None:
        layer.bias.uniform_(-0.3, 0.3)
    return layer


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


REAL = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [True] * 6 + [False]])


@pytest.mark.parametrize("fields", CASES, ids=str)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_each_expert_on_its_tokens_is_every_expert_on_all(fields: dict[str, Any], dtype: torch.dtype, close: float) -> None:
    layer, weights = mixture(fields, dtype), draw(3, 7, 6, dtype=dtype).detach()
    results = []
    for path in (grouped_experts, all_experts):
        layer.path, x = path, draw(3, 7, 6, dtype=dtype)
        layer.zero_grad()
        y = layer(x, LayerContext(token_mask=REAL))
        (y * weights).sum().backward()
        results.append([y, x.grad, *(p.grad for p in layer.parameters())])
    for fast, slow in zip(*results, strict=True):
        assert torch.allclose(fast, slow, rtol=0, atol=close)
    assert all(p.grad is not None and p.grad.any() for p in [layer.router.weight, *layer.experts[0].parameters()])


@pytest.mark.parametrize("fields", CASES[:4], ids=str)
@torch.no_grad()
def test_it_is_the_formula_token_by_token(fields: dict[str, Any]) -> None:
    layer, x = mixture(fields), draw(5, 6)
    component = layer.config
    for row, y in zip(x, layer(x), strict=True):
        logits = layer.router.weight @ row
        s = (
            [1 / (1 + math.exp(-z)) for z in logits]
            if component.scoring_func == "sigmoid"
            else (logits.exp() / logits.exp().sum()).tolist()
        )
        bias = [0.0] * len(s) if layer.bias is None else layer.bias.tolist()
        chosen = sorted(range(len(s)), key=lambda i: -(s[i] + bias[i]))[: component.top_k]
        total = sum(s[i] for i in chosen) if component.norm_topk_prob else 1.0
        expected = sum(s[i] / total * layer.experts[i](row) for i in chosen)
        assert torch.allclose(y, expected + (0 if layer.shared is None else layer.shared(row)), rtol=0, atol=1e-10)


def by_hand(layer: MixtureOfExperts, experts: Tensor, real: Tensor) -> Tensor:
    """Return which choices are kept, computed choice by choice."""
    most = math.ceil(layer.config.capacity_factor * int(real.sum()) * layer.config.top_k / layer.config.n_experts)
    held = [0] * layer.config.n_experts
    taken = torch.zeros_like(experts, dtype=torch.bool)
    for token, k in torch.cartesian_prod(torch.arange(len(experts)), torch.arange(experts.shape[1])).tolist():
        expert = int(experts[token, k])
        if real.flatten()[token]:
            taken[token, k] = held[expert] < most
            held[expert] += 1
    return taken


@pytest.mark.parametrize("capacity", [0.3, 1.0, 1.25, 8.0])
@torch.no_grad()
def test_an_expert_takes_what_comes_first_and_no_padding(capacity: float) -> None:
    layer = mixture({"capacity_factor": capacity, "n_experts": 4, "top_k": 2})
    logits = draw(3, 7, 4)
    routing = layer.route(logits, REAL)
    assert routing.kept is not None
    assert torch.equal(routing.kept, by_hand(layer, routing.experts, REAL))
    assert bool((routing.kept | ~REAL.flatten()[:, None]).all()) == (capacity == 8.0)
    noisy = torch.where(REAL[:, :, None], logits, 9.0 * logits.flip(1))
    assert torch.equal(layer.route(noisy, REAL).kept, routing.kept)
    x = draw(3, 7, 6)
    assert not layer(x, LayerContext(token_mask=REAL))[~REAL].any(), "no expert computes padding"
    assert layer.eval().route(logits, REAL).kept is None, "evaluation drops no token"


@torch.no_grad()
def test_with_a_capacity_a_token_depends_on_what_stands_before_it_and_on_the_rows_above_alone() -> None:
    layer, x = mixture({"capacity_factor": 0.6, "n_experts": 3, "top_k": 2}), draw(3, 7, 6)
    whole = layer(x)
    later = x.clone()
    later[1, 3:] = -later[1, 3:]
    changed = layer(later)
    assert torch.allclose(changed[0], whole[0], rtol=0, atol=1e-12) and torch.allclose(changed[1, :3], whole[1, :3], rtol=0, atol=1e-12)
    assert not torch.allclose(changed[2], whole[2], rtol=0, atol=1e-6), "a later row competes for capacity"
    layer.eval()
    assert torch.allclose(layer(later)[[0, 2]], layer(x)[[0, 2]], rtol=0, atol=1e-12), "without a capacity rows are independent"
    assert torch.allclose(layer(x[1:2])[0], layer(x)[1], rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_bias_chooses_and_does_not_weigh() -> None:
    layer, x = mixture({"n_experts": 4, "top_k": 4, "load_balancing": "bias", "norm_topk_prob": False}), draw(5, 6)
    before = layer(x)
    assert layer.bias is not None
    layer.bias.copy_(torch.tensor([3.0, -2.0, 0.0, 1.0]))
    assert torch.allclose(layer(x), before, rtol=0, atol=1e-12), "all experts are selected, for any bias"
    only = mixture({"n_experts": 4, "top_k": 2, "load_balancing": "bias"})
    only.bias.copy_(torch.tensor([5.0, 0.0, 0.0, 5.0]))
    assert {*only.route(draw(9, 4)).experts.flatten().tolist()} == {0, 3}


def test_the_bias_moves_by_one_rate_against_the_load() -> None:
    moved = update_router_bias(torch.tensor([0.5, 0.0, 0.0, -1.0]), torch.tensor([9.0, 4.0, 3.0, 0.0]), 0.25)
    assert moved.tolist() == [0.25, 0.0, 0.25, -0.75]


@torch.no_grad()
def test_loads_count_real_tokens() -> None:
    experts = torch.tensor([[0, 1], [2, 1], [1, 0], [2, 0]])
    assert expert_load(experts, torch.tensor([True, True, False, True]), 4).tolist() == [2, 2, 2, 0]


def test_the_balance_loss_is_its_equations_and_pieces_add_up() -> None:
    layer, logits = mixture({"n_experts": 4, "top_k": 2}), draw(10, 4)
    experts = layer.route(logits).experts
    f = [sum(i in row for row in experts.tolist()) / 20 for i in range(4)]
    p = logits.exp() / logits.exp().sum(-1, keepdim=True)
    expected = 4 * sum(f[i] * p[:, i].mean() for i in range(4))
    counts = expert_load(experts, torch.ones(10, dtype=torch.bool), 4).double()
    whole = load_balancing_loss(counts, layer.router_probs(logits).sum(0), 10)
    pieces = sum(load_balancing_loss(counts, layer.router_probs(part).sum(0), 10) for part in logits.split(3))
    assert torch.allclose(whole, expected, rtol=0, atol=1e-12) and torch.allclose(pieces, expected, rtol=0, atol=1e-12)
    even = load_balancing_loss(torch.full((4,), 5.0), torch.full((4,), 2.5), 10)
    worst = load_balancing_loss(torch.tensor([20.0, 0, 0, 0]), torch.tensor([10.0, 0, 0, 0]), 10)
    assert (even.item(), worst.item()) == (1.0, 4.0)
    sigmoid = mixture({"n_experts": 4, "scoring_func": "sigmoid"}).router_probs(logits)
    assert torch.allclose(sigmoid.sum(-1), torch.ones(10).double()) and torch.allclose(
        sigmoid[:, 0] / sigmoid[:, 1], logits[:, 0].sigmoid() / logits[:, 1].sigmoid()
    )


def test_the_z_loss_is_its_equation() -> None:
    logits = draw(6, 4)
    expected = sum(math.log(sum(math.exp(z) for z in row)) ** 2 for row in logits.tolist())
    assert router_z_loss_sum(logits).item() == pytest.approx(expected, abs=1e-10)


def test_the_router_works_in_float32_whatever_the_products_do() -> None:
    layer, x = mixture({}, torch.float32), draw(5, 6, dtype=torch.float32)
    assign_addresses(layer)
    recorder = ActivationRecorder(["*"])
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x.bfloat16(), LayerContext(observer=recorder.start_pass("encoder")))
    kinds = [seen.dtype for seen in recorder.activations.values()]
    assert kinds[0] == torch.float32 and {*kinds[1:]} == {torch.bfloat16} and y.dtype == torch.bfloat16
    assert torch.allclose(y.float(), layer(x), atol=5e-2)


def test_in_a_short_type_slices_share_a_few_shapes() -> None:
    layer = mixture({"n_experts": 3, "expert": {"kind": "relu", "bias": True}}, torch.float32)
    rows: list[int] = []
    for expert in layer.experts:
        expert.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    x = draw(2, 230, 6, dtype=torch.float32)
    plain = layer(x)
    assert sum(rows) == 2 * 2 * 230 and any(n % PAD_MULTIPLE for n in rows)
    rows.clear()
    with torch.autocast("cpu", torch.bfloat16):
        short = layer(x)
    assert sum(rows) >= 2 * 2 * 230 and all(n % PAD_MULTIPLE == 0 or n < PAD_MULTIPLE for n in rows)
    assert torch.allclose(short.float(), plain, atol=3e-2)
    gradients = [torch.autograd.grad(y.float().sum(), list(layer.parameters())) for y in (plain, short)]
    for exact, found in zip(*gradients, strict=True):
        assert torch.allclose(exact, found, rtol=0, atol=2e-2 * exact.abs().max().item())
