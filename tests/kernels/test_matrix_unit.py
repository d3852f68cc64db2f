"""Gradients of weights on the matrix unit equal the reference: any shape, strides, sums, threads, and second derivatives."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from transom.kernels import feed_forward, linear, loss
from transom.kernels.linear import missing_matrix_unit, weight_gradient
from transom.layers.dispatch import REFERENCES, selected_path
from transom.layers.feed_forward import Linear, apply_linear
from transom.planning.precision import num_threads_set_to
from transom.training.losses import linear_cross_entropy

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(missing_matrix_unit() is not None, reason=f"needs a matrix unit; {missing_matrix_unit()}"),
]


def drawn(rows: int, width: int, padding: int) -> Tensor:
    """Draw a bfloat16 matrix whose rows are ``padding`` numbers apart."""
    return torch.randn(rows, width + padding).bfloat16()[:, :width]


def relative_error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm().clamp_min(1e-30))


@settings(max_examples=60, deadline=None)
@given(
    *(st.integers(1, 2500), st.integers(1, 300), st.integers(1, 600), st.sampled_from([0, 1, 32]), st.sampled_from([0, 5])),
    *(st.booleans(), st.booleans(), st.integers(1, 3)),
)
def test_it_equals_the_product_in_float64(
    rows: int, outputs: int, inputs: int, grad_padding: int, x_padding: int, with_bias: bool, add: bool, threads: int
) -> None:
    """Sums of products of bfloat16 numbers are exact up to the rounding of float32."""
    torch.manual_seed(rows)
    grad, x = drawn(rows, outputs, grad_padding), drawn(rows, inputs, x_padding)
    total = torch.randn(outputs, inputs) if add else None
    exact = grad.double().T @ x.double() + (0.0 if total is None else total.double())
    with num_threads_set_to(threads):
        found = weight_gradient(grad, x, with_bias, total)
    assert found.weight.dtype == torch.float32 and (total is None or found.weight is total)
    assert relative_error(found.weight, exact) < 2e-6
    assert (found.bias is not None) == with_bias
    if found.bias is not None:
        assert float((found.bias - grad.double().sum(0)).norm()) < 2e-6 * float(grad.double().abs().sum(0).norm())


def test_threads_change_no_bit() -> None:
    grad, x, found = drawn(3000, 700, 0), drawn(3000, 1100, 0), []
    for threads in (1, 2, 3):
        with num_threads_set_to(threads):
            found.append(weight_gradient(grad, x, with_bias=True))
    for other in found[1:]:
        assert torch.equal(other.weight, found[0].weight) and torch.equal(other.bias, found[0].bias)  # type: ignore[arg-type]


def gradients(function: Callable[..., Tensor], inputs: list[Tensor], autocast: bool) -> list[Tensor]:
    """Return the output of a linear layer and the gradients of its inputs."""
    given = [x.detach().requires_grad_() for x in inputs]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = function(*given, *([None] if len(given) == 2 else []))
    along = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).bfloat16().to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, given, along)]


@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_equals_the_reference_and_gradients_of_weights_are_not_rounded(bias: bool) -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(4, 300, 96), torch.randn(70, 96) / 10, *([torch.randn(70)] if bias else [])]
    with torch.autocast("cpu", torch.bfloat16):
        assert selected_path("linear", *inputs, *([] if bias else [None])) == "matrix unit"
    found = gradients(apply_linear, inputs, True)
    rounded = [x.bfloat16().double() for x in inputs]
    exact = gradients(F.linear, rounded, False)
    assert found[0].dtype == torch.bfloat16 and all(x.dtype == torch.float32 for x in found[1:])
    for mine, right, tolerance in zip(found, exact, (4e-3, 4e-3, 2e-6, 2e-6), strict=False):
        assert relative_error(mine, right) < tolerance


def test_frozen_weights_and_inputs_get_no_gradient() -> None:
    layer, x = Linear(96, 70), torch.randn(600, 96, requires_grad=True)
    for frozen in (layer.weight, layer.bias, x):
        for each in (layer.weight, layer.bias, x):
            each.grad = None
            each.requires_grad_(each is not frozen)
        with torch.autocast("cpu", torch.bfloat16):
            layer(x).float().sum().backward()
        assert all((each.grad is None) == (each is frozen) for each in (layer.weight, layer.bias, x))
        assert layer.bias.grad is None or float(layer.bias.grad[3]) == 600


def test_second_derivatives_are_those_of_the_reference() -> None:
    torch.manual_seed(2)
    inputs = [torch.randn(500, 96).bfloat16().float(), (torch.randn(90, 96) / 10).bfloat16().float(), torch.randn(90).bfloat16().float()]

    def penalty(function: Callable[..., Tensor], inputs: list[Tensor], autocast: bool) -> list[Tensor]:
        given = [x.detach().requires_grad_() for x in inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = function(*given).to(torch.float32 if autocast else torch.float64).square().sum()
        grads = torch.autograd.grad(value, given, create_graph=True)
        return list(torch.autograd.grad(sum(grad.square().sum() for grad in grads), given))

    found = penalty(apply_linear, inputs, True)
    for mine, exact in zip(found, penalty(REFERENCES["linear"], [x.double() for x in inputs], False), strict=True):
        assert relative_error(mine, exact) < 0.03


def test_few_rows_other_types_and_passes_without_gradients_are_left_to_pytorch() -> None:
    x, weight = torch.randn(2000, 96), torch.randn(70, 96)
    assert selected_path("linear", x, weight, None) == "reference"  # in float32
    with torch.autocast("cpu", torch.bfloat16):
        assert selected_path("linear", x, weight, None) == "matrix unit"
        assert selected_path("linear", x[:10], weight, None) == "reference"
        with pytest.raises((RuntimeError, TypeError)):  # that of PyTorch, or of the checks of shapes
            apply_linear(x, torch.randn(70, 95), None)
        with torch.no_grad():
            assert selected_path("linear", x, weight, None) == "reference"


@pytest.mark.parametrize("unit", [False, True])
def test_the_losses_gradient_of_the_output_weights_is_the_same_without_it(unit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four chunks of rows, padded to 960, adds to the gradient in float32."""
    torch.manual_seed(3)
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", 1000 * 300)
    if not unit:
        monkeypatch.setattr(loss, "can_compute_weight_gradient", lambda *_: False)
    hidden, weight, labels = torch.randn(900, 200), torch.randn(1000, 200) / 10, torch.randint(1000, (900,))
    calls = list[int]()
    original = weight_gradient
    monkeypatch.setattr(loss, "weight_gradient", lambda *args, **named: (calls.append(1), original(*args, **named))[1])

    def gradient(weight: Tensor, hidden: Tensor, autocast: bool) -> Tensor:
        weight = weight.detach().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            linear_cross_entropy(hidden.requires_grad_(), weight, labels, 0.1)[0].backward()
        assert weight.grad is not None
        return weight.grad

    exact = gradient(weight.bfloat16().double(), hidden.bfloat16().double(), False)
    assert relative_error(gradient(weight, hidden, True), exact) < 6e-3
    assert len(calls) == (4 if unit else 0)


def test_the_feed_forward_network_adds_the_gradients_of_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    inputs = [torch.randn(1500, 64), torch.randn(512, 64) / 8, torch.randn(64, 512) / 22, torch.randn(512), torch.randn(64)]
    calls = list[int]()
    monkeypatch.setattr(feed_forward, "weight_gradient", lambda *args, **named: (calls.append(1), weight_gradient(*args, **named))[1])

    def all_gradients(function: Callable[..., Tensor], inputs: list[Tensor], autocast: bool) -> list[Tensor]:
        given = [x.detach().requires_grad_() for x in inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = function(*given, None, F.gelu)
        return list(torch.autograd.grad(out, given, torch.ones_like(out)))

    exact = all_gradients(REFERENCES["feed_forward"], [x.bfloat16().double() for x in inputs], False)
    for chunk, parts in ((1 << 24, 1), (1 << 20, 2)):
        monkeypatch.setattr(feed_forward, "CHUNK_BYTES", chunk)
        calls.clear()
        for mine, right in zip(all_gradients(feed_forward.transform_tokens, inputs, True), exact, strict=True):
            assert relative_error(mine, right) < 8e-3
        assert len(calls) == 2 * parts


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSOM_NATIVE", "0")
    library = linear.load_elementwise_library
    library.cache_clear(), missing_matrix_unit.cache_clear()
    try:
        assert missing_matrix_unit() == "TRANSOM_NATIVE=0"
    finally:
        library.cache_clear(), missing_matrix_unit.cache_clear()
