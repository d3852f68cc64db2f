"""Attention over visible tiles against the reference with its mask written out: what is gathered, and all gradients."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.patterns import visible_pairs
from tests.layers.test_mask_rules import FAMILIES, packed, pattern, patterns
from transom.config.model import DecoderConfig
from transom.kernels.block_sparse import combine_parts, plan_parts, plan_tiled_mask, tiled_attention
from transom.layers.attention import Attention, AttentionArgs, explicit_attention
from transom.layers.context import AttentionContext
from transom.layers.masks import block_sparse_mask as tiles_planning
from transom.layers.masks.attention_contexts import build_contexts, build_decode_contexts
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, SAME_SEGMENT, TILE_SIZE, MaskRule, TokenPositions
from transom.layers.position_encoding import PositionEncoding, build_position_encoding

pytestmark = pytest.mark.kernels

BIGBIRD = {
    "kind": "any",
    "patterns": [{"kind": "global", "size": 3}, {"kind": "window", "size": 30}, {"kind": "random", "blocks": 1, "size": 32}],
}
SPARSE = {"kind": "any", "patterns": [{"kind": "window", "size": 20}, {"kind": "strided", "stride": 20}]}


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def position_of(kind: str) -> PositionEncoding:
    config = DecoderConfig.model_validate({"d_model": 8, "n_heads": 4, "vocab_size": 5, "position": kind, "max_seq_len": 512})
    return build_position_encoding(config, causal=True).double()


def both_ways(
    rule: MaskRule,
    queries: TokenPositions,
    keys: TokenPositions,
    position: PositionEncoding,
    fields: dict[str, Any],
    dtype: torch.dtype = torch.float64,
) -> list[list[Tensor]]:
    """Attend by tiles and by the reference; give what is gathered and the gradients of everything."""
    n = len(queries.segments)
    q, k, v = drawn(n, 4, queries.segments.shape[1], 5), drawn(n, 2, keys.segments.shape[1], 5), drawn(n, 2, keys.segments.shape[1], 3)
    sinks = drawn(4) if fields.get("sinks") else None
    args = AttentionArgs(softcap=fields.get("softcap"), sinks=sinks)
    written = args._replace(
        mask=rule.dense(queries, keys), bias=position.bias(queries.positions, keys.positions, *position.bias_parameters)
    )
    tiles = plan_tiled_mask(rule, queries, keys, position)
    inputs = [x for x in (q, k, v, sinks, *position.bias_parameters) if x is not None]
    results = []
    for path, given_terms in ((explicit_attention, (written,)), (tiled_attention, (tiles, args))):
        z = path(q, k, v, *given_terms)
        gradients = torch.autograd.grad((z * torch.linspace(-1, 1, z.numel()).view(z.shape)).sum(), inputs)
        results.append([z, *gradients])
    return results


def same(results: list[list[Tensor]], tolerance: float) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(*results, strict=True))


SEQUENCES = st.tuples(st.lists(st.integers(1, 150), min_size=1, max_size=3), st.integers(0, 70))
TERMS = st.fixed_dictionaries({"softcap": st.sampled_from([None, 1.5]), "sinks": st.booleans()})


@settings(max_examples=60)
@given(patterns(), SEQUENCES, SEQUENCES, st.sampled_from(FAMILIES), st.sampled_from(["none", "alibi", "relative"]), TERMS)
def test_tiles_equal_the_reference(
    fields: dict[str, Any], first: Any, second: Any, family: MaskRule, position: str, args: dict[str, Any]
) -> None:
    torch.manual_seed(1)
    rows = [packed(*first), packed(*second)]
    longest = max(row.segments.shape[1] for row in rows)
    places = TokenPositions(
        *(
            torch.cat([torch.nn.functional.pad(x, (0, longest - x.shape[1])) for x in side])
            for side in zip(*rows, strict=True)
            if side[0] is not None
        )
    )
    rule = family & pattern(fields)
    if plan_parts(rule, places, places):
        assert same(both_ways(rule, places, places, position_of(position), args), 1e-10)


@pytest.mark.parametrize("fields", [BIGBIRD, SPARSE, {"kind": "window", "size": 9}], ids=["bigbird", "sparse", "window"])
def test_rows_of_a_part_that_see_nothing_give_zero(fields: dict[str, Any]) -> None:
    torch.manual_seed(1)
    places = packed([200], 0)
    late = places.map(lambda x: x[:, 100:])
    rule = pattern(fields) & ~pattern({"kind": "window", "size": 150})  # the first queries see nothing, others only what is far
    results = both_ways(
        rule | (pattern({"kind": "global"}) & pattern({"kind": "block-local", "size": 120})), late, places, position_of("none"), {}
    )
    assert same(results, 1e-10)
    assert (results[0][0] == 0).all(-1).any() and (results[0][0] != 0).any()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("fields", [BIGBIRD, SPARSE], ids=["bigbird", "sparse"])
def test_in_short_types_too(fields: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(1)
    places = packed([300], 0)
    rule = CAUSAL_IN_SEGMENT & pattern(fields)
    q, k, v = drawn(1, 4, 300, 8), drawn(1, 2, 300, 8), drawn(1, 2, 300, 8)
    short = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
    z = explicit_attention(q, k, v, AttentionArgs(rule.dense(places, places)))
    by_tiles = tiled_attention(*short, plan_tiled_mask(rule, places, places))
    assert by_tiles.dtype == dtype
    exact, rough = (
        [out, *torch.autograd.grad((out * torch.linspace(-1, 1, 8)).sum(), inputs)] for out, inputs in ((z, (q, k, v)), (by_tiles, short))
    )
    for a, b in zip(exact, rough, strict=True):
        assert (a - b).abs().max() <= tolerance * a.abs().max()


@pytest.mark.parametrize("fields", [{"kind": "window", "size": 30}, SPARSE], ids=["one part", "two parts"])
def test_what_is_dropped_forward_is_dropped_backward(fields: dict[str, Any]) -> None:
    """Values linear in z: the gradient of V is that of the very weights that were kept."""
    places = packed([200], 0)
    tiles = plan_tiled_mask(CAUSAL_IN_SEGMENT & pattern(fields), places, places)
    q, k, v = drawn(1, 2, 200, 4), drawn(1, 2, 200, 4), drawn(1, 2, 200, 4)
    torch.manual_seed(7)
    z = tiled_attention(q, k, v, tiles, AttentionArgs(dropout=0.5))
    (gradient,) = torch.autograd.grad(z.sum(), v, retain_graph=True)
    assert torch.allclose((gradient * v).sum(), z.sum(), rtol=1e-10)
    state = torch.get_rng_state()
    torch.autograd.grad(z.sum(), v)
    assert torch.equal(torch.get_rng_state(), state), "the gradient takes no draws from what comes after"
    kept = tiled_attention(q, k, torch.ones_like(v), tiles, AttentionArgs(dropout=0.5))
    assert kept.mean().item() == pytest.approx(1, abs=0.1) and kept.std() > 0.1


def test_a_part_that_sees_nothing_is_left_out() -> None:
    """Of texts shorter than its window, a strided pattern adds nothing to it."""
    rule, texts = CAUSAL_IN_SEGMENT & pattern(SPARSE), packed([18] * 8, 0)
    assert len(plan_parts(rule, texts, texts)) == 1 and not plan_parts(~pattern({"kind": "full"}), texts, texts)
    assert same(both_ways(rule, texts, texts, position_of("alibi"), {"sinks": True}), 1e-10)


def test_pairs_are_counted_without_the_matrix() -> None:
    for fields in (BIGBIRD, SPARSE, {"kind": "full"}, {"kind": "logsparse"}):
        for places in (packed([150, 90], 16), packed([3 * TILE_SIZE], 0)):
            rule = CAUSAL_IN_SEGMENT & pattern(fields)
            assert visible_pairs(plan_parts(rule, places, places)) == int(rule.dense(places, places).sum())


def test_a_strided_pattern_costs_what_is_seen_of_it() -> None:
    """Its tokens are laid side by side; in their own order each tile would see every other."""
    places, n = packed([4096], 0), 4096
    for fields in ({"kind": "strided", "stride": 64}, {"kind": "summary", "stride": 64, "columns": 2}):
        rule = CAUSAL_IN_SEGMENT & pattern(fields)
        parts = plan_parts(rule, places, places)
        assert sum(part.pairs for part in parts) < 0.06 * n * n
    window = CAUSAL_IN_SEGMENT & pattern({"kind": "window", "size": 100})
    assert sum(part.pairs for part in plan_parts(window, places, places)) <= n * (100 + 2 * TILE_SIZE)


def test_sight_takes_tiles_where_they_are_few_and_rows_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles_planning, "MIN_QUERIES", 256)
    window, full = (CAUSAL_IN_SEGMENT & pattern({"kind": kind}) for kind in ("window", "full"))
    narrow = CAUSAL_IN_SEGMENT & pattern({"kind": "window", "size": 10})
    long, short = packed([512], 0), packed([255], 0)
    position = position_of("alibi")
    assert [ctx.block_mask is None for ctx in build_contexts(position, long, long, [narrow, window, SAME_SEGMENT])] == [False, True, True]
    assert [ctx.block_mask is None for ctx in build_contexts(position, short, short, [narrow, full])] == [True, True]
    near = CAUSAL_IN_SEGMENT & pattern({"kind": "window", "size": 70})
    both = CAUSAL_IN_SEGMENT & pattern({"kind": "any", "patterns": [{"kind": "window", "size": 10}, {"kind": "strided", "stride": 8}]})
    shares = [sum(part.pairs for part in plan_parts(rule, long, long)) / 512**2 for rule in (near, both)]
    assert all(0.3 < share < 0.4 for share in shares), "a third of the tiles"
    assert [ctx.block_mask is None for ctx in build_contexts(position, long, long, [near, both])] == [False, True], (
        "joined parts cost more a pair"
    )
    (written,) = build_contexts(position, long, long, [narrow], dense=True)
    assert written.mask is not None and torch.equal(written.mask, narrow.dense(long, long)) and written.block_mask is None


def test_a_step_gathers_its_few_keys() -> None:
    position = position_of("alibi")
    narrow = CAUSAL_IN_SEGMENT & pattern({"kind": "window", "size": 3})
    wide = CAUSAL_IN_SEGMENT & pattern({"kind": "window", "size": 8})
    few, many, all_of_them = build_decode_contexts(position, [narrow, wide, CAUSAL_IN_SEGMENT], 9, torch.zeros(1, 1, dtype=torch.long))
    assert few.key_indices is not None and few.key_indices.tolist() == [7, 8, 9] and few.mask is None
    assert few.bias is not None and few.bias.shape == (1, 4, 1, 3)
    assert many.key_indices is None and many.mask is not None and many.mask.flatten().tolist() == [False] * 2 + [True] * 8
    assert all_of_them.key_indices is None and all_of_them.mask is None


def test_gradients_by_finite_differences() -> None:
    torch.manual_seed(3)
    places = packed([70, 20], 3)
    position = position_of("relative")
    tiles = plan_tiled_mask(SAME_SEGMENT & pattern(SPARSE), places, places, position)
    q, k, v, sinks = drawn(1, 4, 93, 2), drawn(1, 4, 93, 2), drawn(1, 4, 93, 2), drawn(4)

    def whole(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        torch.manual_seed(4)
        return tiled_attention(q, k, v, tiles, AttentionArgs(dropout=0.3, softcap=2.0, sinks=sinks))

    assert torch.autograd.gradcheck(whole, (q, k, v, sinks), fast_mode=True)


def test_the_layer_attends_by_tiles_or_seen_keys_alike() -> None:
    layer = Attention(DecoderConfig.model_validate({"d_model": 8, "n_heads": 4, "n_kv_heads": 2})).double()
    x, places = drawn(2, 200, 8), packed([120, 80], 0, rows=2)
    rule = CAUSAL_IN_SEGMENT & pattern(SPARSE)
    tiles = plan_tiled_mask(rule, places, places)
    mask = rule.dense(places, places)
    assert torch.allclose(layer(x, AttentionContext(block_mask=tiles))[0], layer(x, AttentionContext(mask=mask))[0], rtol=0, atol=1e-10)
    seen = torch.tensor([3, 5, 190])
    only = torch.zeros(200, dtype=torch.bool).index_fill(0, seen, True)
    assert torch.allclose(
        layer(x[:, -1:], AttentionContext(key_indices=seen), x)[0],
        layer(x[:, -1:], AttentionContext(mask=only[None, None, None]), x)[0],
        rtol=0,
        atol=1e-10,
    )


def test_parts_without_their_sums_cannot_be_joined() -> None:
    z = torch.zeros(1, 2, 3, 4)
    with pytest.raises(AssertionError, match="combined"):
        combine_parts([(z,), (z,)], None)
