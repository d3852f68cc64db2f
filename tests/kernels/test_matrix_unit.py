"""Gradients of weights on the matrix unit equal the reference: any shape, strides, sums, threads, and second derivatives."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from transom.kernels import feed_forward, linear, loss
from transom.kernels.linear import missing_matrix_unit, weight_gradient, weight_gradients
from transom.layers.dispatch import REFERENCES, selected_path
from transom.layers.feed_forward import Linear, apply_linear, apply_linears, project
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


@settings(max_examples=30, deadline=None)
@given(
    *(st.integers(1, 900), st.lists(st.integers(1, 700), min_size=2, max_size=4), st.integers(1, 600)),
    *(st.sampled_from([0, 5]), st.booleans(), st.integers(1, 3)),
)
def test_gradients_of_layers_with_the_same_inputs_are_those_of_each(
    rows: int, widths: list[int], inputs: int, padding: int, add: bool, threads: int
) -> None:
    torch.manual_seed(rows)
    grads, x = [drawn(rows, width, padding) for width in widths], drawn(rows, inputs, padding)
    totals = [torch.randn(width, inputs) for width in widths] if add else None
    with_bias = [i % 2 == 0 for i in range(len(widths))]
    exact = [grad.double().T @ x.double() + (0.0 if totals is None else totals[i].double()) for i, grad in enumerate(grads)]
    with num_threads_set_to(threads):
        found = weight_gradients(grads, x, with_bias, totals)
    for i, (mine, grad, right) in enumerate(zip(found, grads, exact, strict=True)):
        assert relative_error(mine.weight, right) < 2e-6
        assert totals is None or mine.weight is totals[i]
        assert (mine.bias is not None) == with_bias[i]
        if mine.bias is not None:
            assert float((mine.bias - grad.double().sum(0)).norm()) < 2e-6 * float(grad.double().abs().sum(0).norm())


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


def three_layers(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
    """Return a function of x, three weights and two biases, whose result is the concatenated outputs of three layers."""

    def concatenated(x: Tensor, q: Tensor, k: Tensor, v: Tensor, q_bias: Tensor, v_bias: Tensor) -> Tensor:
        return torch.cat(function(x, (q, k, v), (q_bias, None, v_bias)), -1)

    return concatenated


def three_inputs() -> list[Tensor]:
    torch.manual_seed(5)
    weights = [torch.randn(width, 96) / 10 for width in (128, 70, 70)]
    return [each.bfloat16().float() for each in (torch.randn(4, 300, 96), *weights, torch.randn(128), torch.randn(70))]


def test_layers_with_the_same_inputs_equal_the_reference() -> None:
    inputs = three_inputs()
    with torch.autocast("cpu", torch.bfloat16):
        assert selected_path("linears", inputs[0], tuple(inputs[1:4]), (inputs[4], None, inputs[5])) == "matrix unit"
        assert selected_path("linears", inputs[0][:1, :2], tuple(inputs[1:4]), (None, None, None)) == "reference"
    found = gradients(three_layers(apply_linears), inputs, True)
    exact = gradients(three_layers(REFERENCES["linears"]), [each.double() for each in inputs], False)
    assert all(each.dtype == torch.float32 for each in found[1:])
    for mine, right, tolerance in zip(found, exact, (4e-3, 6e-3, *[2e-6] * 5), strict=True):
        assert relative_error(mine, right) < tolerance


def test_of_layers_with_the_same_inputs_any_can_be_frozen() -> None:
    inputs = three_inputs()
    for frozen in range(len(inputs)):
        given = [each.clone().requires_grad_(i != frozen) for i, each in enumerate(inputs)]
        with torch.autocast("cpu", torch.bfloat16):
            three_layers(apply_linears)(*given).float().sum().backward()
        assert [each.grad is None for each in given] == [i == frozen for i in range(len(inputs))]
        assert given[4].grad is None or float(given[4].grad[3]) == 1200


def test_layers_with_hooks_or_of_another_class_are_called() -> None:
    class Doubled(Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    layers, x, heard = [Linear(96, 70), Linear(96, 70)], torch.randn(600, 96), list[Tensor]()
    plain = project(x, *layers)
    handle = layers[0].register_forward_hook(lambda module, given, out: heard.append(out))
    assert torch.equal(project(x, *layers)[0], plain[0]) and len(heard) == 1
    handle.remove()
    doubled = Doubled(96, 70)
    doubled.load_state_dict(layers[1].state_dict())
    assert torch.equal(project(x, layers[0], doubled)[1], 2 * plain[1])


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


@pytest.mark.parametrize("layers", [1, 3])
def test_second_derivatives_are_those_of_the_reference(layers: int) -> None:
    torch.manual_seed(2)
    inputs = [torch.randn(500, 96).bfloat16().float(), (torch.randn(90, 96) / 10).bfloat16().float(), torch.randn(90).bfloat16().float()]
    inputs = inputs if layers == 1 else three_inputs()
    function, reference = (
        (apply_linear, REFERENCES["linear"]) if layers == 1 else (three_layers(apply_linears), three_layers(REFERENCES["linears"]))
    )

    def penalty(function: Callable[..., Tensor], inputs: list[Tensor], autocast: bool) -> list[Tensor]:
        given = [x.detach().requires_grad_() for x in inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            value = function(*given).to(torch.float32 if autocast else torch.float64).square().sum()
        grads = torch.autograd.grad(value, given, create_graph=True)
        return list(torch.autograd.grad(sum(grad.square().sum() for grad in grads), given))

    found = penalty(function, inputs, True)
    for mine, exact in zip(found, penalty(reference, [x.double() for x in inputs], False), strict=True):
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


@pytest.mark.parametrize("gated", [False, True])
def test_the_feed_forward_network_adds_the_gradients_of_its_parts(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    inputs = [torch.randn(1500, 64), torch.randn(512, 64) / 8, torch.randn(64, 512) / 22]
    inputs += [torch.randn(512, 64) / 8] if gated else [torch.randn(512), torch.randn(64)]
    calls = list[int]()
    monkeypatch.setattr(feed_forward, "weight_gradients", lambda *args: (calls.append(len(args[0])), weight_gradients(*args))[1])

    def all_gradients(function: Callable[..., Tensor], inputs: list[Tensor], autocast: bool) -> list[Tensor]:
        given = [x.detach().requires_grad_() for x in inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            rest = (None, None, given[3]) if gated else (*given[3:], None)
            out = function(*given[:3], *rest, F.gelu)
        return list(torch.autograd.grad(out, given, torch.ones_like(out)))

    exact = all_gradients(REFERENCES["feed_forward"], [x.bfloat16().double() for x in inputs], False)
    for chunk, parts in ((1 << 24, 1), (1 << 20, 2)):
        monkeypatch.setattr(feed_forward, "CHUNK_BYTES", chunk)
        calls.clear()
        for mine, right in zip(all_gradients(feed_forward.transform_tokens, inputs, True), exact, strict=True):
            assert relative_error(mine, right) < 8e-3
        assert calls == [1, 2 if gated else 1] * parts


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRANSOM_NATIVE", "0")
    library = linear.load_elementwise_library
    library.cache_clear(), missing_matrix_unit.cache_clear()
    try:
        assert missing_matrix_unit() == "TRANSOM_NATIVE=0"
    finally:
        library.cache_clear(), missing_matrix_unit.cache_clear()
