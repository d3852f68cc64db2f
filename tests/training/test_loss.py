"""The chunked loss against whole logits and against torch's own, gradients included."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from transom.kernels import loss as module
from transom.layers.dispatch import REFERENCES, selected_path
from transom.training.losses import cross_entropy, linear_cross_entropy, symmetric_kl


@settings(max_examples=40)
@given(
    st.integers(1, 9), st.integers(2, 12), st.integers(1, 5), st.sampled_from([0.0, 0.1, 0.7]), st.integers(1, 40), st.integers(0, 2**31)
)
def test_chunks_equal_whole_logits_with_gradients(n_tokens: int, vocab: int, d_model: int, smoothing: float, chunk: int, seed: int) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(n_tokens, d_model, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(vocab, d_model, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, vocab, (n_tokens,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_ELEMENTS", chunk)
        patch.setattr(module, "SLICE_ELEMENTS", chunk // 2)
        patch.setattr(module, "_vocab_multiple", lambda hidden: 1 + seed % 8)  # above 1 as on a GPU
        fast, fast_nll = linear_cross_entropy(hidden, weight, labels, smoothing)
    slow, slow_nll = cross_entropy(hidden @ weight.T, labels, smoothing)
    own = F.cross_entropy(hidden @ weight.T, labels, label_smoothing=smoothing, reduction="sum")
    assert torch.allclose(fast, slow, rtol=0, atol=1e-10) and torch.allclose(fast, own, rtol=0, atol=1e-10)
    assert torch.allclose(fast_nll, slow_nll, rtol=0, atol=1e-10) and not fast_nll.requires_grad
    scale = 3.0  # the gradient of what is made of the loss
    for a, b in zip(torch.autograd.grad(fast * scale, (hidden, weight)), torch.autograd.grad(own * scale, (hidden, weight)), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


def test_the_loss_of_capped_logits_is_that_of_the_reference_with_its_gradients() -> None:
    torch.manual_seed(1)
    hidden, weight = (torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (6, 5))
    labels = torch.randint(0, 5, (6,))
    found, nll = linear_cross_entropy(hidden, weight, labels, 0.1, 0.5, 0.7)
    logits = 0.7 * torch.tanh(hidden @ weight.T / 0.7)
    expected = F.cross_entropy(logits, labels, label_smoothing=0.1, reduction="sum") + 0.5 * symmetric_kl(logits)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert torch.allclose(nll, F.cross_entropy(logits, labels, reduction="sum"), rtol=0, atol=1e-12)
    for a, b in zip(*(torch.autograd.grad(loss, (hidden, weight)) for loss in (found, expected)), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.kernels
def test_the_kernel_declines_a_soft_cap() -> None:
    arguments = torch.randn(6, 4), torch.randn(5, 4), torch.randint(0, 5, (6,)), 0.1, 0.0
    assert selected_path("linear_cross_entropy", *arguments, None) == selected_path("linear_cross_entropy", *arguments) == "chunks"
    assert selected_path("linear_cross_entropy", *arguments, 0.7) == "reference"


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_frozen_map_changes_no_other_gradient(smoothing: float) -> None:
    hidden, weight = torch.randn(7, 4, requires_grad=True), torch.randn(5, 4)
    labels = torch.randint(0, 5, (7,))
    frozen, learning = (linear_cross_entropy(hidden, w, labels, smoothing)[0] for w in (weight, weight.clone().requires_grad_()))
    (found,), (expected,) = (torch.autograd.grad(loss, [hidden]) for loss in (frozen, learning))
    assert torch.equal(frozen, learning) and torch.equal(found, expected)


def test_no_gradient_is_computed_where_none_is_wanted() -> None:
    loss, _ = linear_cross_entropy(torch.randn(3, 4), torch.randn(5, 4), torch.tensor([0, 1, 2]), 0.1)
    assert not loss.requires_grad


def test_the_loss_of_certain_predictions_in_bfloat16_is_not_below_zero() -> None:
    """The target logit is rounded as the other logits are; a loss that mixes both roundings was -0.004 per token."""
    generator = torch.Generator().manual_seed(1)
    weight, labels = torch.randn(50, 32, generator=generator), torch.randint(50, (200,), generator=generator)
    hidden = 3 * weight[labels]
    with torch.autocast("cpu", torch.bfloat16):
        loss, nll = linear_cross_entropy(hidden, weight, labels, 0.0)
        reference, _ = REFERENCES["linear_cross_entropy"](hidden, weight, labels, 0.0, 0.0)
    assert loss >= 0 and nll >= 0
    torch.testing.assert_close(loss, reference, rtol=1e-4, atol=1e-4)


def test_bf16_products_stay_near_float32() -> None:
    torch.manual_seed(1)
    hidden, weight = torch.randn(64, 32, requires_grad=True), torch.randn(100, 32, requires_grad=True)
    labels = torch.randint(0, 100, (64,))
    exact, _ = linear_cross_entropy(hidden, weight, labels, 0.1)
    exact_grads = torch.autograd.grad(exact, (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        rough, _ = linear_cross_entropy(hidden, weight, labels, 0.1)
    assert rough.dtype == torch.float32 and abs(rough - exact) / exact < 1e-2
    for a, b in zip(torch.autograd.grad(rough, (hidden, weight)), exact_grads, strict=True):
        assert a.dtype == torch.float32 and (a - b).norm() / b.norm() < 3e-2


@settings(max_examples=40)
@given(st.integers(1, 9), st.integers(2, 12), st.sampled_from([0.0, 0.1]), st.floats(0.1, 5), st.integers(1, 60), st.integers(0, 2**31))
def test_answers_drawn_together_in_chunks_equal_kl_of_torch(
    n_tokens: int, vocab: int, smoothing: float, r_drop: float, chunk: int, seed: int
) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(2 * n_tokens, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(vocab, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, vocab, (n_tokens,)).repeat_interleave(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHUNK_ELEMENTS", chunk)
        patch.setattr(module, "SLICE_ELEMENTS", chunk // 2)
        patch.setattr(module, "_vocab_multiple", lambda hidden: 1 + seed % 8)  # above 1 as on a GPU
        fast, nll = linear_cross_entropy(hidden, weight, labels, smoothing, r_drop)
    logits = hidden @ weight.T
    log_f = F.log_softmax(logits, -1)
    p, q = log_f[::2], log_f[1::2]
    both = F.kl_div(q, p, reduction="sum", log_target=True) + F.kl_div(p, q, reduction="sum", log_target=True)
    own = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum") + r_drop / 2 * both
    assert torch.allclose(symmetric_kl(logits), both / 2, rtol=0, atol=1e-10)
    assert torch.allclose(fast, own, rtol=0, atol=1e-10)
    assert torch.allclose(nll, F.nll_loss(log_f, labels, reduction="sum"), rtol=0, atol=1e-10)
    for a, b in zip(torch.autograd.grad(fast, (hidden, weight)), torch.autograd.grad(own, (hidden, weight)), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-10)


def test_chunks_are_multiples_of_64_rows_or_at_least_pairs() -> None:
    for n_rows, max_rows in itertools.product(range(0, 4096, 64), (1, 2, 63, 64, 65, 667, 1024, 4194)):
        rows = module._chunk_rows(n_rows, max_rows)
        assert 0 < rows <= max(2, max_rows) and rows % 2 == 0
        assert rows % 64 == 0 or max_rows < 64 or n_rows == 0
    assert module._chunk_rows(2048, 667) == 640
