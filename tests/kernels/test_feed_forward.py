"""The native feed-forward network equals the reference and stores no hidden units; observed layers run the separate operations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F

from tests.training.test_activation_checkpointing import CASES, batch_of
from transom.config.components import FeedForwardConfig, GatedFeedForwardConfig
from transom.config.model import AnyModel
from transom.kernels import feed_forward, linear
from transom.kernels.elementwise import CODES
from transom.kernels.native_library import load_elementwise_library
from transom.layers.activation import gelu_tanh
from transom.layers.context import LayerContext
from transom.layers.dispatch import REFERENCES, selected_path
from transom.layers.feed_forward import FeedForward, GatedFeedForward, transform_tokens
from transom.layers.observe import ActivationRecorder, Edit, UnrolledObserver, assign_addresses
from transom.models.build import build_model
from transom.planning.precision import num_threads_set_to
from transom.training.objectives.objective import forward_pass

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(load_elementwise_library().library is None, reason=load_elementwise_library().reason),
]
TOLERANCE = {torch.bfloat16: 6e-3, torch.float32: 2e-6}
"""Largest relative error: the norm of the difference over that of the result; in bfloat16 besides that of PyTorch's operations."""

Activation = Callable[[Tensor], Tensor]


def drawn(n: int, d_ff: int, gated: bool, up_bias: bool, down_bias: bool, dtype: torch.dtype) -> list[Tensor | None]:
    """Draw x and the weights and biases, in the order of ``transform_tokens``."""
    shapes = [(2, n, 24), (d_ff, 24), (24, d_ff), (d_ff,) if up_bias and not gated else None, (24,) if down_bias else None]
    scaled = [None if each is None else torch.randn(each) / each[-1] ** 0.5 for each in (*shapes, (d_ff, 24) if gated else None)]
    return [None if each is None else each.to(dtype) for each in scaled]


def results(function: Callable[..., Tensor], inputs: list[Tensor | None], activation: Activation) -> list[Tensor]:
    """Return the output and the gradients of all inputs."""
    given = [None if x is None else x.detach().requires_grad_() for x in inputs]
    out = function(*given, activation)
    along = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).bfloat16().to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, [x for x in given if x is not None], along)]


def wide(inputs: list[Tensor | None]) -> list[Tensor | None]:
    return [None if x is None else x.double() for x in inputs]


@settings(max_examples=60, deadline=None)
@given(
    *(st.sampled_from([torch.bfloat16, torch.float32]), st.integers(1, 50), st.integers(1, 90), st.sampled_from([*CODES])),
    *(st.booleans(), st.booleans(), st.booleans(), st.sampled_from([1, 2800, 1 << 24]), st.integers(1, 3)),
)
def test_it_equals_the_reference(
    dtype: torch.dtype, n: int, d_ff: int, activation: Activation, gated: bool, up_bias: bool, down_bias: bool, chunk: int, threads: int
) -> None:
    """With any number of tokens at a time; without gradients the output has the same bits."""
    torch.manual_seed(n)
    inputs = drawn(n, d_ff, gated, up_bias, down_bias, dtype)
    with pytest.MonkeyPatch.context() as patch, num_threads_set_to(threads):
        patch.setattr(feed_forward, "CHUNK_BYTES", chunk)
        found = results(feed_forward.transform_tokens, inputs, activation)
        with torch.no_grad():
            assert torch.equal(feed_forward.transform_tokens(*inputs, activation), found[0])  # type: ignore[arg-type]
    exact, rounded = (results(REFERENCES["feed_forward"], given, activation) for given in (wide(inputs), inputs))
    for mine, right, theirs in zip(found, exact, rounded, strict=True):
        assert mine.dtype == dtype and mine.shape == right.shape
        of_products = (theirs.double() - right).norm() if dtype == torch.bfloat16 else 0  # at a slope of ReLU they may be as large as all
        assert float((mine.double() - right).norm()) <= TOLERANCE[dtype] * float(right.norm()) + 2 * float(of_products) + 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("d_ff", [37, 1000])
def test_memory_that_was_never_written_is_not_read(d_ff: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a matrix unit, products in bfloat16 multiply numbers after the rows of their inputs by 0, and new memory may hold NaN."""
    torch.manual_seed(1)
    inputs = drawn(300, d_ff, False, True, True, dtype)
    monkeypatch.setattr(feed_forward, "CHUNK_BYTES", 4 * 100 * d_ff)
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        assert torch.empty(2, dtype=dtype).isnan().all()
        found = results(feed_forward.transform_tokens, inputs, F.gelu)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(each.isfinite().all() for each in found)


@pytest.mark.parametrize("gated", [False, True])
def test_gradients_of_parts_are_those_of_all_tokens_at_once(gated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the gradient of the outputs is one number in memory, as that of a sum, and the last part alone has too few products."""
    inputs = [each for each in drawn(331, 64, gated, False, False, torch.bfloat16) if each is not None]
    given = [each.detach().requires_grad_() for each in inputs]

    def gradients() -> tuple[Tensor, ...]:
        up, gate = given[1], given[-1] if gated else None
        return torch.autograd.grad(feed_forward.transform_tokens(given[0], up, given[2], None, None, gate, F.silu).sum(), given)

    whole = gradients()
    monkeypatch.setattr(feed_forward, "CHUNK_BYTES", 2 * 64 * 164)  # four parts of 133 tokens and one of 130
    monkeypatch.setattr(linear, "MIN_MULTIPLICATIONS", 132 * 64 * 24)
    for mine, exact in zip(gradients(), whole, strict=True):
        assert float((mine - exact).float().norm()) <= 0.01 * float(exact.float().norm())


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("gated", [False, True])
def test_second_derivatives_are_those_of_the_reference(gated: bool, kind: str) -> None:
    torch.manual_seed(1)
    inputs = drawn(5, 40, gated, True, True, torch.bfloat16 if kind == "bfloat16" else torch.float32)

    def penalty(function: Callable[..., Tensor], inputs: list[Tensor | None], autocast: bool = False) -> list[Tensor]:
        given = [None if x is None else x.detach().requires_grad_() for x in inputs]
        some = [x for x in given if x is not None]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = function(*given, gelu_tanh).float().square().sum()
        grads = torch.autograd.grad(loss, some, create_graph=True)
        return list(torch.autograd.grad(sum(grad.square().sum() for grad in grads), some))

    found = penalty(feed_forward.transform_tokens, inputs, kind == "autocast")
    for mine, exact in zip(found, penalty(REFERENCES["feed_forward"], wide(inputs)), strict=True):
        assert float((mine.double() - exact).norm()) <= (1e-5 if kind == "float32" else 0.03) * float(exact.norm())


@pytest.mark.parametrize("gated", [False, True])
def test_a_backward_pass_in_an_autocast_block_has_the_same_bits(gated: bool) -> None:
    torch.manual_seed(1)
    given = [None if x is None else x.requires_grad_() for x in drawn(50, 400, gated, True, True, torch.float32)]
    native: Callable[..., Tensor] = feed_forward.transform_tokens
    some, out = [x for x in given if x is not None], native(*given, F.silu).sum()
    right = torch.autograd.grad(out, some, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert all(map(torch.equal, torch.autograd.grad(out, some), right))


def test_the_output_may_be_changed_in_place() -> None:
    layer, x = LAYERS["plain"](), torch.randn(2, 64, 32)
    assert is_native(layer)
    layer(x).mul_(2).sum().backward()
    doubled = layer.up.weight.grad
    layer.zero_grad()
    layer(x).sum().backward()
    once = layer.up.weight.grad
    assert doubled is not None and once is not None and torch.equal(doubled, 2 * once)


def test_biases_may_have_any_strides_and_rows_any_axes() -> None:
    torch.manual_seed(1)
    x, up, down, bias, down_bias, _ = drawn(50, 400, False, True, True, torch.float32)
    assert x is not None and up is not None and down is not None and bias is not None
    for strided in (bias.repeat_interleave(2)[::2], bias[:1].expand(400)):
        right = results(feed_forward.transform_tokens, [x, up, down, strided.clone(), down_bias, None], F.gelu)
        assert all(map(torch.equal, results(feed_forward.transform_tokens, [x, up, down, strided, down_bias, None], F.gelu), right))
    for rows in (x[:, :1], x[:, 0], x[:1].transpose(0, 1), x[:1], x[0, :1]):
        exact = REFERENCES["feed_forward"](*wide([rows, up, down, bias, down_bias]), None, F.gelu)
        assert torch.allclose(feed_forward.transform_tokens(rows, up, down, bias, down_bias, None, F.gelu).double(), exact, atol=1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_one_trained_tensor_among_frozen_ones_gets_the_same_gradient(gated: bool) -> None:
    torch.manual_seed(1)
    inputs = drawn(50, 400, gated, True, True, torch.float32)
    _, *all_gradients = results(transform_tokens, inputs, F.silu)
    names = [i for i, x in enumerate(inputs) if x is not None]
    for trained, right in zip(names, all_gradients, strict=True):
        given = [x if i != trained or x is None else x.detach().requires_grad_() for i, x in enumerate(inputs)]
        out = transform_tokens(*given, F.silu)  # type: ignore[arg-type]
        along = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).bfloat16().to(out.dtype)
        out.backward(along)
        assert torch.equal(given[trained].grad, right)  # type: ignore[union-attr, arg-type]
        assert all(x is None or x.grad is None for i, x in enumerate(given) if i != trained)


LAYERS: dict[str, Callable[[], FeedForward | GatedFeedForward]] = {
    "plain": lambda: FeedForward(FeedForwardConfig(kind="gelu", bias=True), 32, 512, 0.0),
    "gated": lambda: GatedFeedForward(GatedFeedForwardConfig(kind="swiglu"), 32, 512, 0.0),
}


def is_native(layer: nn.Module, ctx: LayerContext = LayerContext()) -> bool:
    """Return whether a pass of ``layer`` calls the kernel."""
    with pytest.MonkeyPatch.context() as patch:
        calls = list[int]()
        original = feed_forward.activate_rows
        patch.setattr(feed_forward, "activate_rows", lambda *args: calls.append(1) or original(*args))
        layer(torch.randn(2, 64, 32), ctx)
    return bool(calls)


@pytest.mark.parametrize("kind", LAYERS)
def test_what_reads_or_changes_the_hidden_units_is_served_by_the_layer(kind: str) -> None:
    torch.manual_seed(1)
    layer = LAYERS[kind]()
    assign_addresses(layer)
    assert is_native(layer) and is_native(layer.eval())
    for recorder, native in (
        (ActivationRecorder(("*",)), False),
        (ActivationRecorder(("*logits",)), True),
        (ActivationRecorder(edits={"hidden": Edit(torch.zeros(1))}), False),
        (ActivationRecorder(edits={"other": Edit(torch.zeros(1))}), True),
    ):
        observer = recorder.start_pass("")
        assert is_native(layer, LayerContext(observer=observer)) == native
        assert UnrolledObserver(observer, 2).uses("hidden") != native
    layer.dropout.p = 0.5
    assert is_native(layer) and not is_native(layer.train())
    layer.dropout.p = 0.0
    for part in layer.children():
        seen = list[Any]()
        handle = part.register_forward_hook(lambda *args, seen=seen: seen.append(args))
        assert not is_native(layer) and seen
        handle.remove()
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert not is_native(layer)
    handle.remove()
    assert is_native(layer)
    vars(layer.up)["forward"] = lambda x: torch.zeros(*x.shape[:-1], 512)
    assert not is_native(layer)


def test_a_training_step_that_records_other_sites_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a mixture of experts does, and as the step that plans the memory, which records nothing."""
    model = build_model(TypeAdapter(AnyModel).validate_python(CASES["experts"])).eval()
    monkeypatch.setattr(feed_forward, "MIN_ELEMENTS", 1)
    calls = list[int]()
    original = feed_forward.activate_rows
    monkeypatch.setattr(feed_forward, "activate_rows", lambda *args: calls.append(1) or original(*args))
    batch = batch_of(CASES["experts"]["kind"], [0, 1, 2])
    forward_pass(model, batch)
    n = len(calls)
    forward_pass(model, batch, [name for name, _ in model.named_modules() if name.endswith(".router")])
    assert n > 0 and len(calls) == 2 * n


@pytest.mark.parametrize("kind", LAYERS)
def test_hidden_units_are_not_stored(kind: str) -> None:
    layer, x = LAYERS[kind](), torch.randn(2, 64, 32, requires_grad=True)
    saved = list[int]()
    with saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        layer(x)
    n_products = 1 if kind == "plain" else 2
    assert sum(size >= 128 * 512 for size in saved) == n_products


def test_autocast_keeps_the_gradients_of_shared_weights() -> None:
    """A copy in bfloat16 that autocast made without gradients would serve the next layer too."""
    torch.manual_seed(1)
    layer, x = LAYERS["plain"](), torch.randn(2, 64, 32)
    with torch.autocast("cpu", torch.bfloat16):
        weights = layer.up.weight, layer.down.weight, layer.up.bias, layer.down.bias
        assert selected_path("feed_forward", x, *weights, None, F.gelu) == "C++"
        out = layer(x)
        (out.float().sum() + F.linear(x, layer.up.weight).float().sum()).backward()
    assert out.dtype == torch.bfloat16
    found, given = layer.up.weight.grad, [each.detach().double().requires_grad_() for each in weights]
    exact = REFERENCES["feed_forward"](x.double(), *given, None, F.gelu).sum() + F.linear(x.double(), given[0]).sum()
    (right,) = torch.autograd.grad(exact, given[:1])
    assert float((found - right).norm()) < 0.01 * float(right.norm())  # type: ignore[operator]


def test_few_tokens_other_types_and_biases_beside_gates_are_left_to_pytorch() -> None:
    x, up, down, bias = torch.randn(2, 64, 32), torch.randn(512, 32), torch.randn(32, 512), torch.randn(512)
    assert selected_path("feed_forward", x, up, down, bias, None, None, F.gelu) == "C++"
    assert selected_path("feed_forward", x[:, :8], up, down, bias, None, None, F.gelu) == "reference"
    assert selected_path("feed_forward", x.double(), up.double(), down.double(), None, None, None, F.gelu) == "reference"
    assert selected_path("feed_forward", x, up, down, bias, None, up, F.silu) == "reference"
    assert selected_path("feed_forward", x, up, down, bias[:1], None, None, F.gelu) == "reference"
    assert selected_path("feed_forward", x, up, down, bias, None, None, torch.tanh) == "reference"
