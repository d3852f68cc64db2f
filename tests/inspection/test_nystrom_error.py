"""Maps of Nystrom attention are certified whatever their weights, and others are not."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import transom
from tests.tiers import every
from transom.inspection.activations import Activations
from transom.inspection.certify import certify
from transom.inspection.nystrom_error import iterated_inverse, nystrom_error
from transom.layers.approximations.nystrom import Nystrom, pseudo_inverse
from transom.models.base import Network

PATH = "encoder.blocks.0.attn"


def model_of(seed: int, n_landmarks: int, scale: float, n_iterations: int = 6, dtype: torch.dtype = torch.float32) -> Network:
    """Build an encoder whose queries and keys have been made larger: attention of trained models is sharper than that of random ones."""
    torch.manual_seed(seed)
    approximation = {"kind": "nystrom", "n_landmarks": n_landmarks, "n_iterations": n_iterations}
    sizes = {"vocab_size": 40, "n_layers": 1, "d_model": 16, "n_heads": 2, "d_ff": 24, "dropout": 0.0, "max_seq_len": 64}
    model: Network = transom.build({"kind": "encoder", "attention": {"approximation": approximation}} | sizes).eval()
    for name in "qk":
        model.get_parameter(f"{PATH}.{name}.weight").data.mul_(scale)
    return model.to(dtype)


def traced(model: Network, length: int) -> Any:
    tokens = torch.randint(4, 40, (2, length), generator=torch.Generator().manual_seed(length))
    batch = model.as_batch(tokens, attention_mask=torch.arange(length) < torch.tensor([[length], [length - 2]]))  # one text is shorter
    return transom.trace(model, batch, ["attn.weights", "attn.q", "attn.k", "attn.v", "attn.z"])[1]


SIZES = [(2, 6), (8, 8), (8, 20), (16, 40), (16, 18), (32, 50)]


@pytest.mark.parametrize("seed", every(6, range(24), long=5))
def test_random_models_are_certified(seed: int) -> None:
    """In float32 and float64: the errors are the same multiples of eps, so that they are rounding."""
    draw = torch.Generator().manual_seed(seed)
    for n_landmarks, length in SIZES:
        scale, n_iterations = float(torch.rand((), generator=draw)) * 12 + 0.1, (2, 6, 12)[int(torch.randint(3, (), generator=draw))]
        for dtype in (torch.float32, torch.float64):
            found = traced(model_of(seed, n_landmarks, scale, n_iterations, dtype), length)
            (certificate,) = found.certify()
            assert certificate.ok, (certificate, n_landmarks, length, scale, n_iterations, dtype)


def by_hand(q: Tensor, k: Tensor, n_landmarks: int, n_iterations: int) -> Tensor:
    """Compute F, P and B of one head in float64 with loops over the landmarks."""
    n = len(k)
    runs = [[t for t in range(n) if t * min(n_landmarks, n) // n == i] for i in range(min(n_landmarks, n))]
    q_, k_ = (torch.stack([x[run].mean(0) for run in runs]) for x in (q, k))
    f, a, b = ((x @ y.T / math.sqrt(q.shape[1])).softmax(-1) for x, y in ((q, k_), (q_, k_), (q_, k)))
    return f @ pseudo_inverse(a, n_iterations) @ b


@pytest.mark.parametrize(("n_landmarks", "length"), SIZES)
def test_the_error_of_float32_is_within_the_bound_and_near_it(n_landmarks: int, length: int) -> None:
    """Of the kernel against float64, from the same queries, keys and values."""
    used = list[float]()
    for seed in range(4):
        found = traced(model_of(seed, n_landmarks, 6.0), length)
        q, k, v, z = (found[f"{PATH}.{name}"][:1] for name in "qkvz")
        bound = nystrom_error(Nystrom(model_of(seed, n_landmarks, 6.0).config.attention.approximation, 8, 64), q, k, v)  # type: ignore[union-attr]
        for h in range(2):
            exact = by_hand(q[0, h].double(), k[0, h].double(), n_landmarks, 6) @ v[0, h].double()
            used.append(float(((z[0, h].double() - exact).abs() / (torch.finfo(torch.float32).eps * bound[0, h])).max()))
    assert max(used) <= 1 and max(used) > 1e-5, used


@pytest.mark.parametrize("n_iterations", [1, 3, 6, 20])
def test_differences_of_the_inverse_are_those_of_its_scalars(n_iterations: int) -> None:
    """And a small change of a matrix changes the pseudo-inverse by at most the largest of them."""
    torch.manual_seed(n_iterations)
    a = torch.randn(1, 1, 7, 7, dtype=torch.float64).softmax(-1)
    scale = a.sum(-1).amax(-1) * a.sum(-2).amax(-1)
    u, s, wt = torch.linalg.svd(a)
    phi, largest = iterated_inverse(s, scale, n_iterations)
    p = pseudo_inverse(a, n_iterations)
    assert torch.allclose(wt.mT * phi[..., None, :] @ u.mT, p, rtol=1e-8, atol=1e-8 * float(p.abs().max()))
    for _ in range(20):
        change = torch.randn_like(a)
        change = 1e-9 * (change - change.mean())
        moved = _iterate(a + change, scale, n_iterations) - _iterate(a, scale, n_iterations)
        assert float(moved.norm()) <= 1.001 * float(largest) * float(change.norm())


def _iterate(a: Tensor, scale: Tensor, n_iterations: int) -> Tensor:
    """Compute the iterated inverse from a given scale."""
    z, one = a.mT / scale[..., None, None], torch.eye(a.shape[-1], dtype=a.dtype)
    for _ in range(n_iterations):
        z = z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z))) / 4
    return z


@pytest.mark.parametrize("seed", range(4))
def test_maps_of_another_computation_are_refused(seed: int) -> None:
    for n_landmarks, length in SIZES:
        found = traced(model_of(seed, n_landmarks, 1.0), length)
        activations, weights = found.activations, found[f"{PATH}.weights"]
        for other in (weights.flip(2), weights.roll(1, 3), 0.99 * weights, torch.zeros_like(weights)):
            changed = Activations(activations.model, activations.batch, {**activations.recorded, f"{PATH}.weights": other})
            assert certify(changed, PATH).ratio > 1, (n_landmarks, length)
