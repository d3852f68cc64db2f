"""Approximations of attention against explicit formulas, another library, and exact attention, in float64."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

from transom.config.approximations import LinearAttentionConfig, LinformerConfig, NystromConfig, PerformerConfig
from transom.layers.approximations import linear_attention
from transom.layers.approximations.approximate_attention import build_approximation
from transom.layers.approximations.nystrom import pseudo_inverse
from transom.layers.attention import attention_scores, attention_weights, explicit_attention
from transom.layers.context import AttentionContext, SegmentMask

DOUBLE = {"rtol": 0, "atol": 1e-10}
D_HEAD = 4


@pytest.fixture(autouse=True)
def _in_float64() -> Any:
    """Use float64."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    yield
    torch.set_default_dtype(torch.float32)


def draw(n_heads: int = 3, length: int = 9, width: int = D_HEAD) -> Tensor:
    return torch.randn(2, n_heads, length, width)


def performer(d_head: int = D_HEAD, seed: int = 1, **fields: Any) -> linear_attention.Performer:
    found = build_approximation(PerformerConfig(**fields), d_head, 9)
    assert isinstance(found, linear_attention.Performer)
    torch.manual_seed(seed)
    found.sample_projections()
    return found


def by_sums(phi_q: Any, phi_k: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Compute eq. 4 and 8 of Katharopoulos et al. 2020, element by element."""
    z = torch.zeros(*q.shape[:3], v.shape[3])
    for b in range(len(q)):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                before = range(i + 1 if causal else k.shape[2])
                weights = [sum(x * y for x, y in zip(phi_q(q[b, h, i]), phi_k(k[b, h, j]), strict=True)) for j in before]
                z[b, h, i] = sum(w * v[b, h, j] for w, j in zip(weights, before, strict=True)) / sum(weights)
    return z


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["elu", "relu"])
def test_linear_attention_is_its_formula(name: str, causal: bool) -> None:
    q, k, v = draw(length=5) + 1, draw(length=5) + 1, draw(length=5, width=3)

    def phi(x: Tensor) -> list[float]:
        return [max(x_i, 0.0) if name == "relu" else x_i + 1 if x_i > 0 else math.exp(x_i) for x_i in x.tolist()]

    ours = build_approximation(LinearAttentionConfig.model_validate({"feature_map": name}), D_HEAD, 9)
    ones = torch.ones(2, 5, dtype=torch.long)
    assert torch.allclose(ours(q, k, v, SegmentMask(ones, ones, causal)), by_sums(phi, phi, q, k, v, causal), **DOUBLE)


def test_linear_attention_keeps_what_float32_would_round_away() -> None:
    x = torch.full((1, 1, 1, D_HEAD), -20.0, dtype=torch.float32)
    features = linear_attention.FeatureMapAttention(LinearAttentionConfig(), D_HEAD, 9).phi(x)
    assert torch.allclose(features, x.exp(), rtol=1e-5, atol=0) and (nn.functional.elu(x) + 1 == 0).all()


@pytest.mark.parametrize("causal", [True, False])
def test_a_performer_is_its_formula(causal: bool) -> None:
    q, k, v = draw(length=5), draw(length=5), draw(length=5, width=3)
    ours = performer(n_features=6)

    def phi(x: Tensor) -> list[float]:
        x = x / D_HEAD**0.25
        return [math.exp(float(w @ x) - float(x @ x) / 2) / math.sqrt(6) for w in ours.w]

    ones = torch.ones(2, 5, dtype=torch.long)
    assert torch.allclose(ours(q, k, v, SegmentMask(ones, ones, causal)), by_sums(phi, phi, q, k, v, causal), **DOUBLE)


def test_draws_of_a_block_are_orthogonal_and_as_long_as_normal_ones() -> None:
    w = performer(d_head=8, n_features=20).w
    angles = w @ w.T
    for start in (0, 8, 16):
        block = angles[start : start + 8, start : start + 8]
        assert torch.allclose(block, block.diagonal().diag(), **DOUBLE)
    assert angles[:8, 8:].abs().max() > 0.1, "blocks are independent"
    many = performer(d_head=8, n_features=8000).w
    assert many.square().sum(1).mean() == pytest.approx(8, rel=0.02)
    assert many.square().sum(1).var() == pytest.approx(16, rel=0.1), "chi-square of 8 degrees"
    assert many.mean(0).abs().max() < 0.05 and (many.T @ many / 8000 - torch.eye(8)).abs().max() < 0.06


@pytest.mark.parametrize("orthogonal", [True, False])
def test_random_features_are_unbiased_and_their_error_falls_like_one_over_the_root(orthogonal: bool) -> None:
    q, k = draw(1, 6)[:1] / 4, draw(1, 6)[:1] / 4
    exact = (q @ k.transpose(-2, -1) / math.sqrt(D_HEAD)).exp()
    errors = {}
    for m in (16, 256):
        found = []
        for seed in range(200):
            ours = performer(n_features=m, orthogonal=orthogonal, seed=seed)
            found.append(ours.key_features(q) @ ours.key_features(k).transpose(-2, -1) / m)
        estimates = torch.stack(found)
        spread = estimates.std(0) / math.sqrt(200)
        assert ((estimates.mean(0) - exact).abs() < 5 * spread).all(), "the mean over draws is the exponential of the score"
        errors[m] = float((estimates - exact).square().mean().sqrt())
    assert errors[16] / errors[256] == pytest.approx(4, rel=0.25)


def test_orthogonal_draws_err_less() -> None:
    q, k = draw(1, 6, 16)[:1] / 2, draw(1, 6, 16)[:1] / 2
    exact = (q @ k.transpose(-2, -1) / 4).exp()
    error = {}
    for orthogonal in (True, False):
        ours = [performer(16, seed, n_features=16, orthogonal=orthogonal) for seed in range(300)]
        error[orthogonal] = sum(float((o.key_features(q) @ o.key_features(k).transpose(-2, -1) / 16 - exact).square().mean()) for o in ours)
    assert error[True] < 0.9 * error[False]


def test_a_performer_approaches_attention() -> None:
    q, k, v = draw() / 2, draw() / 2, draw(width=3)
    exact = explicit_attention(q, k, v)
    errors = [float((performer(n_features=m)(q, k, v) - exact).norm() / exact.norm()) for m in (64, 4096)]
    assert errors[1] < 0.05 and errors[1] < errors[0] / 3


def test_linformer_is_its_formula_and_with_identities_attention() -> None:
    q, k, v = draw(), draw(), draw(width=3)
    ours = build_approximation(LinformerConfig(rank=5), D_HEAD, 12)
    e, f = (mixing.weight[:, :9] for mixing in (ours.e, ours.f))
    keys, values = torch.einsum("rj,bhjd->bhrd", e, k), torch.einsum("rj,bhjd->bhrd", f, v)
    expected = torch.einsum("bhid,bhrd->bhir", q, keys).div(math.sqrt(D_HEAD)).softmax(-1) @ values
    assert torch.allclose(ours(q, k, v), expected, **DOUBLE)
    exact = build_approximation(LinformerConfig(rank=9), D_HEAD, 9)
    for mixing in (exact.e, exact.f):
        nn.init.eye_(mixing.weight)
    assert torch.allclose(exact(q, k, v), explicit_attention(q, k, v), **DOUBLE)


def test_nystrom_is_the_transformers_library_s() -> None:
    c = NystromformerConfig(
        hidden_size=12,
        num_attention_heads=3,
        num_landmarks=4,
        segment_means_seq_len=12,
        conv_kernel_size=1,
        attention_probs_dropout_prob=0.0,
    )
    theirs = NystromformerSelfAttention(c).double().eval()
    theirs.conv_kernel_size = None  # which leaves the convolution of the values out
    theirs.init_option = "exact"  # each matrix is scaled by its own norm, not by the greatest of the batch
    x = torch.randn(2, 12, 12)
    q, k, v = (mapped(x).view(2, 12, 3, 4).transpose(1, 2) for mapped in (theirs.query, theirs.key, theirs.value))
    ours = build_approximation(NystromConfig(n_landmarks=4, n_iterations=6), 4, 12)
    z = ours(q, k, v).transpose(1, 2).reshape(2, 12, 12)
    assert torch.allclose(z, theirs(x)[0], **DOUBLE)


def test_nystrom_with_a_landmark_a_token_is_attention() -> None:
    q, k, v = draw(), draw(), draw(width=3)
    ours = build_approximation(NystromConfig(n_landmarks=20, n_iterations=30), D_HEAD, 9)
    assert torch.allclose(ours(q, k, v), explicit_attention(q, k, v), rtol=0, atol=1e-8)
    rough = build_approximation(NystromConfig(n_landmarks=20), D_HEAD, 9)(q, k, v)
    assert 1e-8 < (rough - explicit_attention(q, k, v)).abs().max() < 1, "six iterations have not converged"


def test_the_iterated_inverse_is_linear_algebra_s() -> None:
    a = attention_weights(attention_scores(draw(), draw()))
    assert torch.allclose(pseudo_inverse(a, 30), torch.linalg.pinv(a), rtol=0, atol=1e-7)
    low = a[..., :, :1] @ a[..., :1, :]
    assert torch.allclose(low @ pseudo_inverse(low, 30) @ low, low, **DOUBLE)
    assert (pseudo_inverse(torch.zeros(2, 3, 3), 6) == 0).all()


@pytest.mark.parametrize(
    "config",
    [LinearAttentionConfig(), PerformerConfig(n_features=7), LinformerConfig(rank=3), NystromConfig(n_landmarks=3)],
    ids=lambda b: b.kind,
)
def test_float32_stays_near_float64_and_bf16_is_worked_in_float32(config: Any) -> None:
    ours = build_approximation(config, D_HEAD, 9)
    if isinstance(ours, linear_attention.Performer):
        ours.sample_projections()
    q, k, v = draw(), draw(), draw(width=3)
    exact = ours(q, k, v)
    assert torch.allclose(ours(q.float(), k.float(), v.float()).double(), exact, rtol=1e-5, atol=1e-5)
    short = [x.bfloat16() for x in (q, k, v)]
    with torch.autocast("cpu", torch.bfloat16):
        found = ours(*short)
    assert found.dtype == torch.bfloat16 and torch.equal(found, ours(*(x.float() for x in short)).bfloat16())
    weights = ours.implied_weights(q, k, AttentionContext())
    assert torch.allclose(weights @ v, exact, **DOUBLE)
