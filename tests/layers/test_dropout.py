"""Dropout by random bytes, and ReLU: expectation, independence, gradients, agreement with PyTorch."""

import pytest
import torch
from torch.nn import functional as F

from transom.layers.activation import relu
from transom.layers.dropout import Dropout, draw_dropout_mask, dropout, dropout_add, round_probability


@pytest.mark.parametrize("p", [1e-9, 1e-4, 1e-3, 0.9 / 512, 1 / 512, 0.01, 0.1, 0.3, 0.5, 0.9])
def test_share_and_scale_are_those_of_the_rounded_probability(p: float) -> None:
    torch.manual_seed(1)
    n, q = 200_000, round_probability(p)
    assert abs(p - q) <= (1 / 512 if p >= 1 / 512 else 2**-33)
    y = dropout(torch.ones(n), p, training=True)
    dropped = (y == 0).double().mean().item()
    assert abs(dropped - q) < 5 * (q * (1 - q) / n) ** 0.5  # five deviations
    assert y[y > 0].unique().tolist() == pytest.approx([1 / (1 - q)])


def test_the_least_probabilities_drop_as_often_as_they_say() -> None:
    torch.manual_seed(1)
    n, p = 20_000_000, 1e-4
    dropped = (dropout(torch.ones(n), p, training=True) == 0).sum().item()
    assert abs(dropped - n * p) < 3 * (n * p) ** 0.5
    assert round_probability(0.1) == 26 / 256 and round_probability(2**-32) == 2**-32 and round_probability(1e-12) == 0


def test_neighbours_are_independent() -> None:
    torch.manual_seed(1)
    y = draw_dropout_mask(torch.ones(400_000), 0.5) - 1
    for distance in (1, 2, 7, 8, 64):
        assert abs((y[:-distance] * y[distance:]).mean().item()) < 5 / 400_000**0.5


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_any_shape_and_type(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    y = dropout(torch.ones(shape, dtype=dtype), 0.5, training=True)
    assert y.shape == shape and y.dtype == dtype


def test_the_gradient_passes_where_the_value_did() -> None:
    x, residual = torch.randn(50, dtype=torch.float64, requires_grad=True), torch.randn(50, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(2)
    y = dropout(x, 0.25, training=True)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(y, x * grad) and set(grad.tolist()) == {0.0, 1 / 0.75}
    torch.manual_seed(2)
    total = dropout_add(residual, x, 0.25, training=True)
    assert torch.allclose(total, residual + y)
    ours = torch.autograd.grad(total.sum(), (residual, x))
    assert torch.equal(ours[0], torch.ones(50)) and torch.equal(ours[1], grad)


def test_evaluation_and_zero_pass_through() -> None:
    x = torch.randn(4)
    layer = Dropout(0.5).eval()
    assert torch.equal(layer(x), x) and torch.equal(dropout(x, 0.0, training=True), x)
    assert torch.equal(layer.add(x, x), x + x)


def test_even_the_largest_probability_is_finite() -> None:
    assert dropout(torch.ones(1000), 0.9999, training=True).isfinite().all()


def test_the_rectifier_is_torch_s_with_its_gradient() -> None:
    x = torch.tensor([-1.0, -0.0, 0.0, 2.0, float("inf"), float("nan")], dtype=torch.float64, requires_grad=True)
    assert torch.allclose(relu(x), F.relu(x), equal_nan=True)
    ours, theirs = (torch.autograd.grad(f(x)[:5].sum(), x)[0] for f in (relu, F.relu))
    assert torch.equal(ours[:5], theirs[:5])
    smooth = torch.tensor([-1.5, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(relu, smooth)
