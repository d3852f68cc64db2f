"""The native element-wise operations: any shape, stride and number of threads, special values, second derivatives, and no compiler."""

import timeit
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.models.combinations import described
from transom.data.batch import LanguageBatch, PaddedSequences
from transom.kernels import elementwise, native_library
from transom.kernels.attention import short_attention
from transom.kernels.elementwise import CODES
from transom.kernels.native_library import load_elementwise_library
from transom.layers.activation import relu
from transom.layers.attention import AttentionArgs, explicit_attention
from transom.layers.dispatch import KERNEL_TABLE, REFERENCES, kernels_of, selected_path
from transom.layers.dropout import KeyedMasks, drop_keyed, round_probability
from transom.layers.norm import layer_norm, rms_norm
from transom.layers.position_encoding import rotate_pairs
from transom.models.build import build_model
from transom.planning.precision import num_threads_set_to
from transom.training.objectives.objective import CrossEntropy, forward_pass

pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(load_elementwise_library().library is None, reason=load_elementwise_library().reason),
]
DTYPES = [torch.bfloat16, torch.float32]
ROUNDING = {torch.bfloat16: 2**-8, torch.float32: 2e-6}
"""Largest relative error: rounding to bfloat16, or a few roundings to float32."""


def results(operation: Callable[..., Tensor], inputs: list[Tensor], rest: tuple[Any, ...] = ()) -> list[Tensor]:
    """Return the output and the gradients of all inputs, for a gradient of the output that depends on its shape only."""
    given = [x.detach().requires_grad_() for x in inputs]
    out = operation(*given, *rest)
    along = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).bfloat16().to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, given, along)]


def is_close(found: Tensor, exact: Tensor) -> bool:
    """Return whether each element is within one rounding of the result, with room for float32 sums."""
    room = (2e-5 if found.dtype == torch.bfloat16 else 1e-6) * exact.abs().max() + 1e-30
    return bool(((found.double() - exact).abs() <= ROUNDING[found.dtype] * exact.abs() + room).all())


def fastest(work: Callable[[], object]) -> float:
    """Return the shortest of several durations, in seconds."""
    work()
    return min(timeit.repeat(work, number=1, repeat=15))


@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 10), (torch.float32, 4)])
@pytest.mark.parametrize("kind", ["plain", "bias", "gated"])
def test_loops_over_exponentials_are_vectorized(dtype: torch.dtype, limit: int, kind: str) -> None:
    """They take two to six times as long as those of ReLU in bfloat16, and two to three times in float32; without vectors, twenty times."""
    x, up, grad, grad_x, recomputed = (torch.randn(256, 2048).to(dtype) for _ in range(5))
    bias, factor = torch.randn(2048) if kind == "bias" else None, up if kind == "gated" else None
    of_factor = torch.empty_like(up) if kind == "gated" else None
    of_bias = (None, None) if bias is None else (recomputed, torch.empty_like(bias))

    def seconds(activation: Callable[[Tensor], Tensor]) -> tuple[float, float]:
        given = x, bias, factor, activation
        return (
            fastest(lambda: elementwise.activate_rows(*given, grad_x)),
            fastest(lambda: elementwise.activate_rows_backward(grad, *given, grad_x, of_factor, *of_bias)),
        )

    with num_threads_set_to(1):
        of_relu = seconds(relu)
        for activation in CODES:
            assert all(found < limit * least for found, least in zip(seconds(activation), of_relu, strict=True)), activation


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(1, 40000), st.sampled_from([*CODES]), st.booleans(), st.integers(1, 3))
def test_activations_of_any_size(dtype: torch.dtype, n: int, activation: Callable[[Tensor], Tensor], gated: bool, threads: int) -> None:
    torch.manual_seed(n)
    x, up = (4 * torch.randn(n)).to(dtype), torch.randn(n).to(dtype)
    ours: Callable[..., Tensor] = elementwise.activate if gated else lambda x: elementwise.activate(x, None, activation)
    reference: Callable[..., Tensor] = REFERENCES["activation"] if gated else activation
    inputs, rest = ([x, up], (activation,)) if gated else ([x], ())
    with num_threads_set_to(threads):
        found = results(ours, inputs, rest)
    for mine, exact in zip(found, results(reference, [each.double() for each in inputs], rest), strict=True):
        assert mine.dtype == dtype and is_close(mine, exact)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(1, 600), st.integers(1, 70), st.booleans(), st.booleans(), st.integers(1, 3))
def test_norms_of_any_size(dtype: torch.dtype, rows: int, width: int, centered: bool, has_bias: bool, threads: int) -> None:
    torch.manual_seed(rows)
    x, weight, bias = (1 + torch.randn(rows, width)).to(dtype), torch.randn(width), torch.randn(width)
    inputs = [x, weight, *([bias] if centered and has_bias else [])]
    rest: tuple[Any, ...] = ((1e-2,) if has_bias else (None, 1e-2)) if centered else (1e-2,)
    name = "layer_norm" if centered else "rms_norm"
    assert selected_path(name, *inputs, *rest) == ("fused" if centered and dtype == torch.float32 else "C++")
    operation = elementwise.layer_norm if centered else elementwise.rms_norm
    with num_threads_set_to(threads):
        found = results(operation, inputs, rest)
    exact = results(REFERENCES[name], [each.double() for each in inputs], rest)
    for mine, right in zip(found, exact, strict=True):
        scale = float(right.norm())
        assert float((mine.double() - right).norm()) <= max(ROUNDING[mine.dtype], 1e-5) * scale + 1e-5


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(DTYPES), st.integers(1, 3), st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.integers(0, 3), st.booleans()
)
def test_rotations_of_any_strides(dtype: torch.dtype, batch: int, heads: int, length: int, pairs: int, more: int, by_token: bool) -> None:
    torch.manual_seed(length)
    d_head, per_row = 2 * pairs + more, bool(more % 2)
    x = torch.randn(batch, length, heads, d_head).to(dtype).transpose(1, 2)
    x = x if by_token else x.contiguous()
    angles = torch.randn(batch if per_row else 1, 1, length, pairs)
    tables = angles.cos(), angles.sin()
    assert selected_path("rotary", x, *tables) == "C++"
    found = results(rotate_pairs, [x], tables)
    for mine, exact in zip(found, results(REFERENCES["rotary"], [x.double()], tuple(each.double() for each in tables)), strict=True):
        assert is_close(mine, exact)
    assert found[0].is_contiguous() and (found[1].transpose(1, 2) if by_token else found[1]).is_contiguous()


@settings(max_examples=40, deadline=None)
@given(
    *(st.sampled_from(DTYPES), st.integers(1, 3), st.integers(1, 2), st.integers(1, 9), st.integers(1, 150)),
    *(st.sampled_from(["none", "causal", "padding", "per head"]), st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 3)),
)
def test_softmax_of_any_mask(
    dtype: torch.dtype, batch: int, heads: int, queries: int, keys: int, kind: str, hidden: float, threads: int
) -> None:
    torch.manual_seed(keys)
    s = (5 * torch.randn(batch, heads, queries, keys)).to(dtype)
    masks = {
        "none": None,
        "causal": torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)[None, None],
        "padding": torch.rand(batch, 1, 1, keys) >= hidden,
        "per head": torch.rand(queries, keys, heads, batch).permute(3, 2, 0, 1) >= hidden,
    }
    mask = masks[kind]
    p, grad = s.clone(), torch.randn_like(s)
    with num_threads_set_to(threads):
        some_empty = elementwise.softmax_(p, mask)
        found = grad.clone()
        elementwise.softmax_backward_(found, p)
    visible = torch.ones(s.shape, dtype=torch.bool) if mask is None else mask.expand(s.shape)
    empty = ~visible.any(-1, keepdim=True)
    assert some_empty == bool(empty.any())
    exact = s.double().masked_fill(~visible, -torch.inf).softmax(-1).masked_fill(empty, 1 / keys)
    assert is_close(p, exact) and not p[~visible & ~empty].any()
    g = grad.double()
    right = (g - (g * p.double()).sum(-1, keepdim=True)) * p.double()
    assert float((found.double() - right).norm()) <= ROUNDING[dtype] * float(right.norm()) + 1e-6


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(1, 70), st.integers(1, 600), st.integers(1, 3))
def test_softmax_of_logits(dtype: torch.dtype, rows: int, vocab: int, threads: int) -> None:
    torch.manual_seed(vocab)
    z = (20 * torch.randn(rows, vocab)).to(dtype)
    p, log_sums = z.clone(), torch.empty(rows)
    with num_threads_set_to(threads):
        elementwise.logits_softmax_(p, log_sums)
    assert is_close(p, z.double().softmax(-1)) and is_close(log_sums, z.double().logsumexp(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
def test_special_scores(score: float, dtype: torch.dtype) -> None:
    s = torch.randn(1, 1, 2, 40).to(dtype)
    s[0, 0, 0, 3] = score
    exact, p = s.float().softmax(-1), s.clone()
    elementwise.softmax_(p, None)
    assert torch.equal(p.isnan(), exact.isnan()) and torch.allclose(p.float(), exact, rtol=2 * ROUNDING[dtype], atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keys", [3, 64, 200])
def test_attention_equals_the_reference(keys: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some queries may attend to no key, and query heads share keys."""
    torch.manual_seed(keys)
    q, k, v = (torch.randn(2, heads, keys, 16).to(dtype) for heads in (4, 2, 2))
    mask = torch.ones(keys, keys, dtype=torch.bool).tril() & (torch.arange(keys) > 0)
    calls = []
    monkeypatch.setattr(elementwise, "softmax_", lambda s, mask, original=elementwise.softmax_: calls.append(s.shape) or original(s, mask))
    args = AttentionArgs(mask[None, None])
    found = results(lambda q, k, v: short_attention(q, k, v, args), [q, k, v])
    exact = results(lambda q, k, v: explicit_attention(q, k, v, args), [q.double(), k.double(), v.double()])
    assert calls == [(2, 4, keys, keys)] and not found[0][:, :, 0].any()
    for mine, right in zip(found, exact, strict=True):
        assert float((mine.double() - right).norm()) <= 3 * ROUNDING[dtype] * float(right.norm())


@settings(max_examples=40, deadline=None)
@given(
    *(st.sampled_from(DTYPES), st.lists(st.integers(1, 7), max_size=2), st.integers(1, 1100), st.sampled_from([0.5, 0.1, 1 / 256, 1e-3])),
    *(st.lists(st.integers(0, 40), max_size=3), st.booleans(), st.integers(1, 3)),
)
def test_keyed_dropout_drops_the_same_elements(
    dtype: torch.dtype, axes: list[int], width: int, p: float, offsets: list[int], has_residual: bool, threads: int
) -> None:
    torch.manual_seed(width)
    shape = (2, *axes, width)
    x, masks = torch.randn(shape).to(dtype), KeyedMasks(torch.randint(-(2**63), 2**63 - 1, (2,)), tuple(offsets[: len(axes) + 1]))
    p = round_probability(p)
    inputs = [x, torch.randn(shape).to(dtype)] if has_residual else [x]

    def ours(x: Tensor, residual: Tensor | None = None) -> Tensor:
        return drop_keyed(x, residual, masks, p)

    mask = masks.draw(torch.ones(shape, dtype=torch.float64), p)
    assert selected_path("keyed_dropout", x, None, masks, p) == "C++"
    with num_threads_set_to(threads):
        found = results(ours, inputs)
    exact = results(lambda x, residual=0.0: residual + x * mask, [each.double() for each in inputs])
    assert all(is_close(mine, right) for mine, right in zip(found, exact, strict=True))
    assert torch.equal(found[1] == 0, (mask == 0) | (exact[1] == 0))


def test_the_number_of_threads_changes_no_bit() -> None:
    torch.manual_seed(1)
    x, up, weight, bias = torch.randn(700, 96).bfloat16(), torch.randn(700, 96), torch.randn(96), torch.randn(96)
    cases: list[tuple[Callable[..., Tensor], list[Tensor], tuple[Any, ...]]] = [
        (elementwise.activate, [x, up.bfloat16()], (F.silu,)),
        (elementwise.activate, [x.float(), up], (F.silu,)),
        (layer_norm, [x, weight, bias], (1e-5,)),
        (rms_norm, [x, weight], (1e-5,)),
    ]
    for operation, inputs, rest in cases:
        found = []
        for threads in (1, 2, 3):
            with num_threads_set_to(threads):
                found.append(results(operation, inputs, rest))
        assert all(torch.equal(a, b) for others in found[1:] for a, b in zip(found[0], others, strict=True))


@pytest.mark.parametrize("activation", [*CODES])
def test_special_values(activation: Callable[[Tensor], Tensor]) -> None:
    """Also in rows of several vectors, of which the last is not full."""
    x = torch.tensor([float("nan"), float("inf"), 3e38, -3e38, 0.0, -0.0, 88.0, -88.0, 1e-40]).repeat(5).bfloat16()
    found, exact = elementwise.activate(x, None, activation).double(), activation(x.double())
    assert torch.equal(found.isnan(), exact.isnan()) and torch.equal(found.isposinf(), exact.isposinf())
    smallest = 2e-38 * x.double().abs().clamp_min(1)  # exp(-87) is the least exponential
    finite = exact.isfinite()
    assert ((found - exact).abs() <= 2 * ROUNDING[torch.bfloat16] * exact.abs() + smallest)[finite].all()


def test_rows_without_numbers_have_norms_without_numbers() -> None:
    assert elementwise.rms_norm(torch.zeros(2, 0), torch.ones(0), 1e-6).shape == (2, 0)


def test_gradients_can_be_differentiated_again() -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(6, 16).bfloat16(), torch.randn(6, 16).bfloat16(), torch.randn(16), torch.randn(16)]
    angles, masks = torch.randn(1, 1, 4, 4), KeyedMasks(torch.arange(6))

    def penalty(x: Tensor, up: Tensor, weight: Tensor, bias: Tensor, table: dict[str, Callable[..., Tensor]]) -> list[Tensor]:
        given = [each.detach().requires_grad_() for each in (x, up, weight, bias)]
        x, up, weight, bias = given
        y = table["keyed_dropout"](table["activation"](x, up, F.silu), x, masks, 0.25)
        y = table["layer_norm"](table["keyed_dropout"](y, None, masks, 0.5), weight, bias, 1e-3)
        y = table["rms_norm"](y, weight, 1e-3).view(3, 2, 4, 4)[..., [0, 1, 2, 3, 0, 1, 2, 3]]
        y = table["rotary"](y, angles.cos(), angles.sin())
        grads = torch.autograd.grad(y.float().square().sum(), given, create_graph=True)
        return list(torch.autograd.grad(sum(grad.float().square().sum() for grad in grads), given))

    ours = {
        "keyed_dropout": drop_keyed,
        "layer_norm": layer_norm,
        "rms_norm": rms_norm,
        "activation": elementwise.activate,
        "rotary": rotate_pairs,
    }
    for mine, theirs in zip(penalty(*inputs, ours), penalty(*inputs, REFERENCES), strict=True):
        assert float((mine - theirs).float().norm() / theirs.float().norm()) < 0.05


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_not_contiguous_has_its_second_derivative_too(dtype: torch.dtype) -> None:
    """As the queries and keys of QK-norm, which lie in memory by token."""
    torch.manual_seed(1)
    x, weight = torch.randn(2, 6, 4, 16).to(dtype).transpose(1, 2), torch.randn(16)

    def penalty(operation: Callable[..., Tensor]) -> Tensor:
        given = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(operation(given).float().square().sum(), given, create_graph=True)
        return torch.autograd.grad(grad.float().square().sum(), given)[0]

    pairs: list[tuple[Callable[..., Tensor], Callable[..., Tensor]]] = [
        (lambda x: elementwise.rms_norm(x, weight, 1e-3), lambda x: REFERENCES["rms_norm"](x, weight, 1e-3)),
        (lambda x: elementwise.layer_norm(x, weight, None, 1e-3), lambda x: REFERENCES["layer_norm"](x, weight, None, 1e-3)),
        (lambda x: elementwise.activate(x, x, F.silu), lambda x: REFERENCES["activation"](x, x, F.silu)),
    ]
    for ours, theirs in pairs:
        mine, right = penalty(ours).float(), penalty(theirs).float()
        assert float((mine - right).norm()) <= 10 * ROUNDING[dtype] * float(right.norm())


def gradients(fields: dict[str, Any], dtype: torch.dtype) -> list[Tensor]:
    """Return the gradients of a small decoder's loss; the products are in ``dtype``."""
    torch.manual_seed(1)
    model = build_model(described(fields)).to(torch.float64 if dtype == torch.float64 else torch.float32)
    tokens = torch.randint(3, 9, (4, 12), generator=torch.Generator().manual_seed(2))
    batch = LanguageBatch(PaddedSequences.pad(tokens.tolist()), tokens.roll(-1, 1), tuple(range(4)))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        CrossEntropy(0.0).loss(forward_pass(model, batch)).backward_loss.backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("feed_forward", ["swiglu", "gelu-tanh"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_a_model_is_as_near_float64_as_with_pytorch_s_operations(feed_forward: str, norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"kind": "decoder", "d_model": 32, "n_heads": 2, "n_layers": 2, "d_ff": 48, "vocab_size": 9, "max_seq_len": 16}
    fields |= {"position": "rotary", "norm": norm, "feed_forward": feed_forward}
    exact, ours = gradients(fields, torch.float64), gradients(fields, torch.bfloat16)
    for name in ("activation", "rotary", "layer_norm", "rms_norm", "keyed_dropout"):
        monkeypatch.setitem(KERNEL_TABLE, name, [kernel for kernel in kernels_of(name) if kernel.path != "C++"])
    theirs = gradients(fields, torch.bfloat16)

    def error(found: list[Tensor]) -> float:
        squares = [((a.double() - b).norm() ** 2, b.norm() ** 2) for a, b in zip(found, exact, strict=True)]
        return float(sum(a for a, _ in squares) / sum(b for _, b in squares)) ** 0.5

    assert any(not torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)) and error(ours) <= 1.2 * error(theirs)


def test_without_a_compiler_pytorch_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "expected a C++ compiler, found none" in load_elementwise_library.__wrapped__().reason
    monkeypatch.setenv(native_library.NATIVE_VARIABLE, "0")
    monkeypatch.setattr(elementwise, "load_elementwise_library", load_elementwise_library.__wrapped__)
    assert selected_path("rms_norm", torch.randn(2, 8).bfloat16(), torch.ones(8), 1e-6) == "written out"
    assert selected_path("activation", torch.randn(2, 8).bfloat16(), None, F.silu) == "reference"
