"""The dispatch table: which calls take a row, how it is filled, and that each row is as near its reference as it says."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from tests.kernels.test_block_sparse import BIGBIRD
from tests.kernels.test_native_decoder import TOLERANCE
from tests.layers.test_mask_rules import packed, pattern
from transom.decoding.backends.native_decoder import decoder_step_library
from transom.decoding.packed_linear import pack_linear
from transom.kernels import native_library
from transom.kernels.block_sparse import plan_tiled_mask
from transom.kernels.flex import plan_flex_mask
from transom.kernels.kernel_registry import KERNELS
from transom.layers.activation import gelu_tanh, relu
from transom.layers.attention import AttentionArgs, scaled_dot_product_attention
from transom.layers.dispatch import REFERENCES, Kernel, kernels_of, selected_path
from transom.layers.dropout import KeyedMasks, draw_dropout_mask
from transom.layers.masks.block_sparse_mask import build_block_sparse_mask
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT
from transom.layers.norm import rms_norm
from transom.layers.position_encoding import rotate_pairs
from transom.training.losses import linear_cross_entropy

PLACES = packed([300], 0, rows=2)
NEAR = CAUSAL_IN_SEGMENT & pattern(BIGBIRD)
ANGLES = torch.linspace(0, 3, 20 * 4).view(1, 1, 20, 4)
LABELS = torch.arange(64) % 50


def heads(length: int) -> list[Tensor]:
    return [torch.randn(2, 4, length, 16) for _ in range(3)]


def with_gradients(function: Callable[..., Any], *inputs: Tensor) -> list[Tensor]:
    """Call a function; return its result and its gradients."""
    given = [x.detach().requires_grad_() for x in inputs]
    found = function(*given)
    out = found[0] if isinstance(found, tuple) else found
    along = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    grads = torch.autograd.grad((out.double() * along).sum(), given, allow_unused=True)
    return [out.detach(), *(g for g in grads if g is not None)]


CASES: dict[tuple[str, str], Callable[[], tuple[list[Tensor], tuple[Any, ...]]]] = {
    ("activation", "C++"): lambda: ([torch.randn(256, 128).bfloat16(), torch.randn(256, 128).bfloat16()], (gelu_tanh,)),
    ("feed_forward", "C++"): lambda: (
        [
            each.bfloat16()
            for each in (torch.randn(256, 32), torch.randn(128, 32) / 6, torch.randn(32, 128) / 11, torch.randn(128), torch.randn(32))
        ],
        (None, gelu_tanh),
    ),
    ("linear", "matrix unit"): lambda: (
        [each.bfloat16().float() for each in (torch.randn(600, 96), torch.randn(90, 96) / 10, torch.randn(90))],
        (),
    ),
    ("rotary", "C++"): lambda: ([torch.randn(2, 20, 3, 16).bfloat16().transpose(1, 2)], (ANGLES.cos(), ANGLES.sin())),
    ("layer_norm", "C++"): lambda: ([torch.randn(4096, 64).bfloat16(), 1 + torch.randn(64) / 3, torch.randn(64)], (1e-5,)),
    ("rms_norm", "C++"): lambda: ([torch.randn(4096, 64).bfloat16(), 1 + torch.randn(64) / 3], (1e-6,)),
    ("keyed_dropout", "C++"): lambda: (
        [torch.randn(4, 64, 32).bfloat16(), torch.randn(4, 64, 32).bfloat16()],
        (KeyedMasks(torch.arange(4)), 0.25),
    ),
    ("relu", "mask product"): lambda: ([torch.randn(64, 32)], ()),
    ("dropout_add", "one pass"): lambda: ([torch.randn(64, 32), torch.randn(64, 32)], (draw_dropout_mask(torch.empty(64, 32), 0.25),)),
    ("rotary", "in place"): lambda: ([torch.randn(2, 3, 20, 16)], (ANGLES.cos(), ANGLES.sin())),
    ("layer_norm", "float32 sums"): lambda: ([torch.randn(4096, 64).bfloat16(), 1 + torch.randn(64) / 3, torch.randn(64)], (1e-5,)),
    ("layer_norm", "fused"): lambda: ([torch.randn(4096, 64), 1 + torch.randn(64) / 3, torch.randn(64)], (1e-5,)),
    ("rms_norm", "written out"): lambda: ([torch.randn(4096, 64), 1 + torch.randn(64) / 3], (1e-6,)),
    ("rms_norm", "fused"): lambda: ([torch.randn(4096, 64), 1 + torch.randn(64) / 3], (1e-6,)),
    ("attention", "C++"): lambda: (heads(60), (AttentionArgs(torch.ones(60, 60, dtype=torch.bool).tril()[None, None]),)),
    ("attention", "short"): lambda: (heads(60), (AttentionArgs(torch.ones(60, 60, dtype=torch.bool).tril()[None, None], softcap=5.0),)),
    ("attention", "query chunks"): lambda: (heads(60), (AttentionArgs(dropout=0.25, dropout_masks=KeyedMasks(torch.arange(2))),)),
    ("attention", "fused"): lambda: (heads(60), (AttentionArgs(torch.ones(60, 60, dtype=torch.bool).tril()[None, None]),)),
    ("block_sparse_attention", "tiles"): lambda: (
        heads(300),
        (plan_tiled_mask(NEAR, PLACES, PLACES), AttentionArgs(softcap=5.0, sinks=torch.randn(4))),
    ),
    ("block_sparse_attention", "FlexAttention"): lambda: (heads(300), (plan_flex_mask(NEAR, PLACES, PLACES), AttentionArgs(softcap=5.0))),
    ("linear_cross_entropy", "chunks"): lambda: ([torch.randn(64, 32), torch.randn(50, 32)], (LABELS, 0.1, 2.0)),
}
"""Arguments in the type that a path serves: those that get a gradient, and the rest."""

ELSEWHERE = {
    *(("block_sparse_mask", "tiles"), ("block_sparse_mask", "blocks"), ("packed_linear", "oneDNN"), ("decoder_step", "C++")),
    *(("log_softmax_", "C++"), ("largest", "C++"), ("linears", "matrix unit")),
}
"""Rows that return no tensor, none with a gradient, or several; others test them."""


def wide(x: Any) -> Any:
    """Cast what has 32 bits or fewer to float64."""
    if isinstance(x, AttentionArgs):
        return AttentionArgs(*map(wide, x))
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def test_every_row_is_measured_and_every_operation_has_a_reference() -> None:
    assert {row[:2] for row in KERNELS} == set(CASES) | ELSEWHERE
    assert {row.operation for row in KERNELS} == set(REFERENCES)


@pytest.mark.parametrize("row", [row for row in KERNELS if row[:2] in CASES], ids=lambda row: f"{row.operation} {row.path}")
def test_a_path_is_as_near_its_reference_as_the_table_says(row: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)  # its gradients are not promised on a processor
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    torch.manual_seed(1)
    if row.path in ("C++", "matrix unit") and (missing := row.missing()):
        pytest.skip(missing)
    inputs, rest = CASES[row[:2]]()
    with torch.autocast("cpu", torch.bfloat16, enabled=row.operation == "linear"):
        assert row.condition(*inputs, *rest)
        found = with_gradients(lambda *given: row.implementation(*given, *rest), *inputs)
    reference, exact_rest = REFERENCES[row.operation], tuple(map(wide, rest))
    exact = with_gradients(lambda *given: reference(*given, *exact_rest), *map(wide, inputs))
    errors = [float((ours.double() - theirs).norm() / theirs.norm()) for ours, theirs in zip(found, exact, strict=True)]
    assert row.error / 10 <= max(errors) <= row.error


def test_packed_products_are_as_near_as_the_table_says() -> None:
    (row,) = (row for row in KERNELS if row.operation == "packed_linear")
    torch.manual_seed(1)
    weight, bias, x = torch.randn(48, 64).bfloat16(), torch.randn(48).bfloat16(), torch.randn(5, 64).bfloat16()
    if not row.condition(weight, bias, None, 5):
        pytest.skip("needs a processor that multiplies bfloat16")
    expected = x.double() @ weight.double().T + bias.double()
    error = float((row.implementation(weight, bias, None, 5)(x).double() - expected).norm() / expected.norm())
    assert row.error / 10 <= error <= row.error
    assert (
        selected_path("packed_linear", weight, bias, torch.sin, 5)
        == selected_path("packed_linear", weight.float(), bias, None, 5)
        == "reference"
    )
    assert torch.equal(pack_linear(weight, bias, torch.sin, 5)(x), torch.nn.functional.linear(x, weight, bias).sin())


def test_the_compiled_step_is_as_near_as_its_tests_say() -> None:
    (row,) = (row for row in KERNELS if row.operation == "decoder_step")
    assert row.error == TOLERANCE["bf16"]


@pytest.mark.kernels
def test_the_engine_is_the_kernel_s() -> None:
    assert decoder_step_library() is native_library.load_native_library()


class Marked(Tensor):
    """A subclass that changes nothing, as a sharded tensor is one."""


@pytest.mark.kernels
def test_only_plain_tensors_and_parameters_take_a_row() -> None:
    x, weight = torch.randn(2, 8), torch.nn.Parameter(torch.ones(8))
    assert selected_path("rms_norm", x, weight, 1e-6) in ("C++", "written out")
    assert selected_path("rms_norm", x.as_subclass(Marked), weight, 1e-6) == "reference"
    assert selected_path("rms_norm", x, torch.ones(8).as_subclass(Marked), 1e-6) == "reference"
    q = torch.randn(1, 2, 3, 4)
    assert selected_path("attention", q, q, q, AttentionArgs(bias=torch.zeros(1, 2, 3, 3))) == "short"
    assert selected_path("attention", q, q, q, AttentionArgs(bias=torch.zeros(1, 2, 3, 3).as_subclass(Marked))) == "reference"


def test_arguments_by_keyword_reach_the_same_kernel() -> None:
    hidden, weight, labels = torch.randn(64, 16), torch.randn(500, 16), torch.randint(0, 500, (64,))
    loss, _ = linear_cross_entropy(hidden, weight, labels, 0.1)
    assert torch.equal(linear_cross_entropy(labels=labels, weight=weight, hidden=hidden, label_smoothing=0.1)[0], loss)
    pairs = linear_cross_entropy(hidden, weight, labels, label_smoothing=0.1, r_drop=2.0)[0]
    assert torch.equal(pairs, linear_cross_entropy(hidden, weight, labels, 0.1, 2.0)[0])
    q, k, v = torch.randn(3, 2, 4, 8, 16).unbind()
    assert torch.equal(scaled_dot_product_attention(q, v=v, k=k), scaled_dot_product_attention(q, k, v))
    with pytest.raises(TypeError, match="missing a required argument: 'labels'"):
        linear_cross_entropy(hidden, weight=weight, label_smoothing=0.1)  # type: ignore[call-arg]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # PyTorch's own forward mode calls it
def test_function_transforms_take_the_reference() -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(3, 5, 8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    each = torch.stack([rms_norm(row, weight, 1e-6) for row in x])
    assert torch.allclose(torch.func.vmap(lambda row: rms_norm(row, weight, 1e-6))(x), each, rtol=0, atol=1e-12)
    grad = torch.func.grad(lambda x: relu(rms_norm(x, weight, 1e-6)).square().sum())(x)
    (expected,) = torch.autograd.grad(relu(rms_norm(own := x.clone().requires_grad_(), weight, 1e-6)).square().sum(), own)
    assert torch.allclose(grad, expected, rtol=0, atol=1e-12)
    _, tangent = torch.func.jvp(relu, (x,), (torch.ones_like(x),))
    assert torch.equal(tangent, (x > 0).double())
    q = torch.randn(3, 1, 2, 4, 4, dtype=torch.float64)
    apart = torch.stack([scaled_dot_product_attention(each, each, each) for each in q])
    assert torch.allclose(torch.func.vmap(lambda q: scaled_dot_product_attention(q, q, q))(q), apart, rtol=0, atol=1e-12)
    hidden, map_, labels = torch.randn(6, 4), torch.randn(5, 4), torch.arange(6) % 5
    found = torch.func.grad(lambda h: linear_cross_entropy(h, map_, labels, 0.1)[0])(hidden)
    (expected,) = torch.autograd.grad(linear_cross_entropy(own := hidden.clone().requires_grad_(), map_, labels, 0.1)[0], own)
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*torch.autograd.function.Function.* should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("first", ["compiled", "eager"])
def test_rows_are_traced_whole_even_where_the_compiler_makes_the_first_call(first: str) -> None:
    program = f"""
import warnings
import torch
from transom.layers.dispatch import KERNEL_TABLE
from transom.layers.norm import rms_norm
x, weight = torch.randn(4, 8, requires_grad=True), torch.ones(8)
assert not any(KERNEL_TABLE.values())
if {first == "eager"}:
    rms_norm(x, weight, 1e-6)
y = torch.compile(lambda x: rms_norm(x, weight, 1e-6), backend="aot_eager", fullgraph=True)(x)
assert torch.allclose(y, rms_norm(x, weight, 1e-6), atol=1e-6)
assert any(KERNEL_TABLE.values())
"""
    environment = {**os.environ, "TRANSOM_KERNELS": "all"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True, env=environment)


def asked(value: str, program: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "TRANSOM_KERNELS": value}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


@pytest.mark.long
def test_the_environment_chooses_once() -> None:
    program = """
import os, torch
from transom.layers.activation import relu
from transom.layers.dispatch import kernels_of
relu(torch.ones(1))
os.environ["TRANSOM_KERNELS"] = "all"
print(len(kernels_of("relu")))
"""
    assert asked("reference", program).stdout == "0\n" and asked("all", program).stdout == "1\n"
    wrong = asked("fast", program)
    assert "TransomError: TRANSOM_KERNELS: expected 'all' or 'reference', found 'fast'; correct or unset the variable" in wrong.stderr


@pytest.mark.kernels
def test_long_masks_are_planned_where_a_kernel_can(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = CAUSAL_IN_SEGMENT & pattern({"kind": "window", "size": 2})
    monkeypatch.setattr("transom.layers.masks.block_sparse_mask.MIN_QUERIES", 256)
    long = packed([512], 0)
    found = build_block_sparse_mask(narrow, long, long)
    assert found is not None
    mask, bias = found.dense()
    assert torch.equal(mask, narrow.dense(long, long)) and bias is None
    monkeypatch.setattr("transom.layers.dispatch._transforms_active", lambda: True)
    assert build_block_sparse_mask(narrow, long, long) is None


def test_a_rotation_leaves_further_columns() -> None:
    x = torch.randn(1, 2, 20, 11)
    assert torch.equal(rotate_pairs(x, ANGLES.cos(), ANGLES.sin())[..., 8:], x[..., 8:])
    assert torch.equal(REFERENCES["rotary"](x, ANGLES.cos(), ANGLES.sin())[..., 8:], x[..., 8:])


def test_rows_are_listed_in_the_order_in_which_they_are_tried() -> None:
    expected = [row.path for row in KERNELS if row.operation == "attention"]
    assert [row.path for row in kernels_of("attention")] in (expected, [])
