"""Native attention equals the reference: any shape, mask and strides, second derivatives, special scores, and what it leaves to others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transom.kernels.attention import can_use_native_attention, native_attention
from transom.kernels.linear import missing_matrix_unit
from transom.kernels.native_library import load_elementwise_library
from transom.layers.attention import AttentionArgs, explicit_attention, scaled_dot_product_attention
from transom.layers.dispatch import selected_path
from transom.planning.precision import num_threads_set_to

SAMPLE = torch.zeros(2, 2, 4, 16)
pytestmark = [
    pytest.mark.kernels,
    pytest.mark.skipif(not can_use_native_attention(SAMPLE, SAMPLE, SAMPLE), reason=f"needs AVX-512; {load_elementwise_library().reason}"),
]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3}
"""Largest relative error of results by dtype: the norm of the difference over that of the result."""

DTYPES = [torch.float32, *([torch.bfloat16] if missing_matrix_unit() is None else [])]
"""Without a matrix unit, ``test_emulated_matrix_unit.py`` runs these tests in bfloat16."""


def results(attention: Callable[..., Tensor], inputs: list[Tensor], args: AttentionArgs) -> list[Tensor]:
    """Return the output and the gradients of queries, keys and values."""
    given = [x.detach().requires_grad_() for x in inputs]
    z = attention(*given, args)
    along = torch.randn(z.shape, generator=torch.Generator().manual_seed(3)).bfloat16().to(z.dtype)
    return [z.detach(), *torch.autograd.grad(z, given, along)]


def drawn(batch: int, heads: int, length: int, width: int, by_token: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw vectors that lie in memory by token, as projections write them, or by head."""
    x = torch.randn(batch, length, heads, width).to(dtype).transpose(1, 2)
    return x if by_token else x.contiguous()


def mask_of(kind: str, batch: int, heads: int, queries: int, keys: int) -> Tensor | None:
    return {
        "none": None,
        "causal": torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)[None, None],
        "padding": torch.rand(batch, 1, 1, keys) < 0.7,
        "any": torch.rand(batch, heads, queries, keys) < 0.5,
        "by key": (torch.rand(keys, queries) < 0.5).T[None, None],
        "nothing": torch.zeros(batch, 1, queries, keys, dtype=torch.bool),
    }[kind]


@settings(max_examples=60, deadline=None)
@given(
    *(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 140), st.integers(1, 140)),
    *(st.sampled_from([16, 48, 80]), st.sampled_from([16, 64]), st.sampled_from(["none", "causal", "padding", "any", "by key", "nothing"])),
    *(st.booleans(), st.integers(1, 3), st.sampled_from(DTYPES)),
)
def test_it_equals_the_reference(
    batch: int,
    kv_heads: int,
    group: int,
    queries: int,
    keys: int,
    d_head: int,
    d_value: int,
    kind: str,
    by_token: bool,
    threads: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(keys)
    heads = kv_heads * group
    sizes = ((heads, queries, d_head), (kv_heads, keys, d_head), (kv_heads, keys, d_value))
    inputs, args = [drawn(batch, *size, by_token, dtype) for size in sizes], AttentionArgs(mask_of(kind, batch, heads, queries, keys))
    with num_threads_set_to(threads):
        found = results(native_attention, inputs, args)
    exact = results(explicit_attention, [x.double() for x in inputs], args)
    assert found[0].transpose(1, 2).is_contiguous() and all(grad.transpose(1, 2).is_contiguous() for grad in found[1:])
    for mine, right in zip(found, exact, strict=True):
        assert float((mine.double() - right).norm()) <= TOLERANCE[dtype] * float(right.norm()) + 1e-7


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_long_sequences_and_many_threads_change_no_bit(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    inputs = [drawn(2, heads, 1100, 32, True, dtype) for heads in (4, 2, 2)]
    args, found = AttentionArgs(mask_of("causal", 2, 4, 1100, 1100)), []
    for threads in (1, 2, 3):
        with num_threads_set_to(threads):
            found.append(results(native_attention, inputs, args))
    assert all(torch.equal(a, b) for others in found[1:] for a, b in zip(found[0], others, strict=True))
    for mine, right in zip(found[0], results(explicit_attention, [x.double() for x in inputs], args), strict=True):
        assert float((mine.double() - right).norm()) <= TOLERANCE[dtype] * float(right.norm())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_special_values_stay_with_their_query(value: float, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    q, k, v = (drawn(1, 2, 20, 16, True, dtype) for _ in range(3))
    q[0, 1, 7, 3] = value
    found, exact = native_attention(q, k, v).float(), explicit_attention(*(x.float() for x in (q, k, v)))
    assert torch.equal(found.isnan(), exact.isnan())
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert torch.allclose(found, exact, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("by_channel", [False, True])
def test_gradients_can_be_differentiated_again(by_channel: bool) -> None:
    torch.manual_seed(3)
    inputs, args = [drawn(2, heads, 9, 16, True) for heads in (4, 2, 2)], AttentionArgs(mask_of("causal", 2, 4, 9, 9))
    if by_channel:  # copied before autograd sees it
        inputs = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in inputs]

    def penalty(attention: Callable[..., Tensor]) -> list[Tensor]:
        given = [x.detach().requires_grad_() for x in inputs]
        grads = torch.autograd.grad(attention(*given, args).square().sum(), given, create_graph=True)
        return list(torch.autograd.grad(sum(grad.square().sum() for grad in grads), given))

    for mine, theirs in zip(penalty(native_attention), penalty(explicit_attention), strict=True):
        assert float((mine - theirs).norm()) <= 1e-4 * float(theirs.norm())


def test_no_weights_are_kept() -> None:
    kept = list[Tensor]()
    inputs = [drawn(2, 4, 200, 16, True).requires_grad_() for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        native_attention(*inputs, AttentionArgs(mask_of("causal", 2, 4, 200, 200)))
    assert sum(x.numel() for x in kept) == sum(x.numel() for x in inputs) + 2 * 2 * 4 * 200 + 200 * 200


@pytest.mark.parametrize(
    ("fields", "d_head", "dtype"),
    [
        ({"bias": torch.zeros(1, 4, 9, 9)}, 16, torch.float32),
        ({"softcap": 5.0}, 16, torch.float32),
        ({"dropout": 0.5}, 16, torch.float32),
        ({"sinks": torch.zeros(4)}, 16, torch.float32),
        ({}, 12, torch.float32),  # not whole vectors
        ({}, 16, torch.float64),
        ({}, 16, torch.float16),
    ],
    ids=["bias", "softcap", "dropout", "sinks", "width", "float64", "float16"],
)
def test_what_it_does_not_support_is_left_to_others(fields: dict[str, Any], d_head: int, dtype: torch.dtype) -> None:
    q = torch.randn(2, 4, 9, d_head, dtype=dtype)
    assert selected_path("attention", q, q, q, AttentionArgs(**fields)) != "C++"
    plain = torch.randn(2, 4, 9, 16)
    assert selected_path("attention", plain, plain, plain, AttentionArgs()) == "C++"
    with torch.no_grad():
        assert selected_path("attention", plain, plain, plain, AttentionArgs()) == "fused"
    assert scaled_dot_product_attention(q, q, q, AttentionArgs(**fields)).shape == q.shape
