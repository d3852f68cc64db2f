"""Attention against its equation, fused kernels against the reference, and gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from transom.config.model import DecoderConfig, Seq2SeqConfig
from transom.decoding.backends.native_decoder import is_plain_attention
from transom.kernels.attention import MAX_SHORT_KEYS, fused_attention, short_attention
from transom.kernels.block_sparse import plan_tiled_mask
from transom.layers.attention import (
    Attention,
    AttentionArgs,
    attention_scores,
    attention_weights,
    explicit_attention,
    scaled_dot_product_attention,
)
from transom.layers.cache import KeyValues, KVCache
from transom.layers.context import AttentionContext
from transom.layers.dispatch import selected_path
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, TokenPositions


def draw(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def equation(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    """Compute attention element by element, in Python floats."""
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=torch.float64)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        seen = [j for j in range(k.shape[2]) if mask[b, h, i, j]]
        logits = [sum((q[b, h, i] * k[b, h, j]).tolist()) / math.sqrt(q.shape[-1]) + float(bias[b, h, i, j]) for j in seen]
        total = sum(map(math.exp, logits))
        for j, logit in zip(seen, logits, strict=True):
            out[b, h, i] += math.exp(logit) / total * v[b, h, j]
    return out


shapes = st.tuples(*(st.integers(1, n) for n in (3, 3, 4, 5, 4, 3)), st.integers(0, 2**31))


@settings(max_examples=40)
@given(shapes)
def test_all_paths_equal_the_equation_and_each_other_with_gradients(shape: tuple[int, ...]) -> None:
    batch, n_heads, query, key, d_head, d_value, seed = shape
    torch.manual_seed(seed)
    q, k, v = (
        draw(batch, n_heads, query, d_head, grad=True),
        draw(batch, n_heads, key, d_head, grad=True),
        draw(batch, n_heads, key, d_value, grad=True),
    )
    bias = draw(batch, n_heads, query, key)
    mask = torch.rand(batch, n_heads, query, key) < 0.6  # some rows are empty
    expected = equation(q, k, v, mask, bias)
    weights = draw(*expected.shape)
    gradients = []
    for path in (explicit_attention, fused_attention, short_attention):
        z = path(q, k, v, AttentionArgs(mask, bias))
        assert torch.allclose(z, expected, rtol=0, atol=1e-10)
        gradients.append(torch.autograd.grad((z * weights).sum(), (q, k, v)))
    for explicit, *others in zip(*gradients, strict=True):
        assert all(torch.allclose(other, explicit, rtol=0, atol=1e-10) for other in others)


@pytest.mark.parametrize("path", [explicit_attention, fused_attention, short_attention])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_row_that_sees_nothing_gives_zero(path, dtype) -> None:  # type: ignore[no-untyped-def]
    q, k, v = (torch.randn(2, 3, 4, 8, dtype=dtype, requires_grad=True) for _ in range(3))
    mask = torch.ones(2, 1, 4, 4, dtype=torch.bool)
    mask[0, 0, 1] = False
    z = path(q, k, v, AttentionArgs(mask))
    assert (z[0, :, 1] == 0).all() and z[1].abs().min() > 0
    z.float().sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_the_article_s_hand_calculation() -> None:
    """Two unit tokens, W_Q = W_K = identity: weights 0.67 and 0.33 (article "Complete Guide", section 3.5)."""
    x = torch.eye(2, dtype=torch.float64)[None, None]
    weights = attention_weights(attention_scores(x, x))
    assert weights[0, 0, 0].tolist() == pytest.approx([0.6698, 0.3302], abs=1e-4)


def test_beams_share_their_source_s_keys() -> None:
    torch.manual_seed(1)
    layer = Attention(Seq2SeqConfig(d_model=6, n_heads=2)).double()
    memory, x = draw(2, 4, 6), draw(6, 1, 6)  # three beams per source
    mask = torch.tensor([[True] * 4, [True, True, False, False]])[:, None, None]
    shared = layer(x, AttentionContext(mask=mask), layer.project_kv(memory, AttentionContext())[0])[0]
    apart = layer(x, AttentionContext(mask=mask.repeat_interleave(3, 0)), memory.repeat_interleave(3, 0))[0]
    assert torch.allclose(shared, apart, rtol=0, atol=1e-12)


def test_the_cache_appends_reads_and_reorders() -> None:
    cache = KVCache(3, 2, 5, 4, 3, like=torch.zeros(()))
    first, second = KeyValues(torch.randn(3, 2, 2, 4), torch.randn(3, 2, 2, 3)), KeyValues(torch.randn(2, 2, 1, 4), torch.randn(2, 2, 1, 3))
    assert torch.equal(cache.update(first).k, first.k)
    cache.reorder(torch.tensor([2, 0]))
    k, v = cache.update(second)
    assert torch.equal(k, torch.cat([first.k[[2, 0]], second.k], 2)) and torch.equal(v, torch.cat([first.v[[2, 0]], second.v], 2))
    assert cache.length == 3
    with pytest.raises(AssertionError, match="expected at most 5 tokens in the cache, found 6"):
        cache.update(KeyValues(torch.randn(2, 2, 3, 4), torch.randn(2, 2, 3, 3)))


def test_dropout_acts_on_the_weights_in_training_only() -> None:
    torch.manual_seed(1)
    layer = Attention(Seq2SeqConfig(d_model=8, n_heads=2, attention_dropout=0.5))
    x = torch.randn(2, 5, 8)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


def test_short_attention_drops_as_explicit_attention_does_with_the_same_draws() -> None:
    mask = torch.rand(2, 1, 3, 5) < 0.7
    results = []
    for path in (explicit_attention, short_attention):
        torch.manual_seed(3)
        q, k, v = draw(2, 2, 3, 4, grad=True), draw(2, 2, 5, 4, grad=True), draw(2, 2, 5, 6, grad=True)
        z = path(q, k, v, AttentionArgs(mask, dropout=0.4))
        results.append([z, *torch.autograd.grad((z * torch.arange(6)).sum(), (q, k, v))])
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_bounded_scores_have_a_lean_gradient_too() -> None:
    torch.manual_seed(1)
    q, k, v = draw(2, 4, 3, 4, grad=True), draw(2, 2, 5, 4, grad=True), draw(2, 2, 5, 6, grad=True)
    args = AttentionArgs(torch.rand(2, 1, 3, 5) < 0.7, draw(2, 4, 3, 5), softcap=0.8)
    results = [
        [z, *torch.autograd.grad((z * torch.arange(6)).sum(), (q, k, v))]
        for z in (p(q, k, v, args) for p in (explicit_attention, scaled_dot_product_attention))
    ]
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)


def test_a_learned_bias_gets_its_gradient() -> None:
    q, bias = draw(1, 2, 3, 4), draw(1, 2, 3, 3, grad=True)
    scaled_dot_product_attention(q, q, q, AttentionArgs(bias=bias)).sum().backward()
    assert bias.grad.abs().max() > 0


@pytest.mark.parametrize("path", [fused_attention, short_attention])
def test_bf16_stays_near_float32(path) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 4, 9, 16) for _ in range(3))
    exact, rough = explicit_attention(q, k, v), path(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert rough.dtype == torch.bfloat16 and (rough.float() - exact).norm() / exact.norm() < 1e-2


@pytest.mark.kernels
@pytest.mark.parametrize("softcap, sinks", [(None, False), (1.5, False), (None, True), (1.5, True)])
def test_bounded_scores_and_sinks_keep_the_fast_paths_that_the_schema_names(softcap: float | None, sinks: bool) -> None:
    """Each case uses the kernel that the costs in ``config/components.py`` describe."""
    args = AttentionArgs(softcap=softcap, sinks=torch.zeros(2) if sinks else None)
    q, bias, long = torch.randn(1, 2, 4, 4), torch.zeros(1, 2, 4, 4, requires_grad=True), torch.randn(1, 2, MAX_SHORT_KEYS + 1, 4)
    places = TokenPositions.single_sequence(4)
    taken = [selected_path("attention", *args) for args in ((q, q, q, args), (q, q, q, args._replace(bias=bias)), (q, long, long, args))]
    with torch.no_grad():
        taken.append(selected_path("attention", q, q, q, args))
    taken.append(selected_path("block_sparse_attention", q, q, q, plan_tiled_mask(CAUSAL_IN_SEGMENT, places, places), args))
    dense = "fused" if softcap is None and not sinks else "reference"
    assert taken == ["reference" if sinks else "short", dense, dense, dense, "tiles"]
    layer = Attention(DecoderConfig.model_validate({"d_model": 8, "n_heads": 2, "attention": {"softcap": softcap, "sinks": sinks}}))
    assert is_plain_attention(layer) == (softcap is None and not sinks)  # what the flat and the compiled decoder ask
