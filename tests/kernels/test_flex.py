"""FlexAttention over visible blocks against the reference with its mask written out: what is gathered, all gradients, and the blocks.

Without a GPU its kernel runs uncompiled, which writes all scores out and asks every pair: which blocks it would be told of is looked at
apart.
"""

from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention as flex

from tests.kernels.test_block_sparse import BIGBIRD, SEQUENCES, SPARSE, TERMS, drawn, position_of, same
from tests.layers.test_mask_rules import FAMILIES, packed, pattern, patterns
from transom.config.model import DecoderConfig
from transom.kernels import flex as kernel
from transom.kernels.flex import BLOCK_SIZE, flex_block_attention, is_available, plan_flex_mask
from transom.layers.attention import Attention, AttentionArgs, block_sparse_attention, explicit_attention
from transom.layers.context import AttentionContext
from transom.layers.dispatch import KERNEL_TABLE, kernels_of
from transom.layers.masks import block_sparse_mask as tiles_planning
from transom.layers.masks.attention_contexts import build_contexts
from transom.layers.masks.mask_rules import CAUSAL_IN_SEGMENT, SAME_SEGMENT, MaskRule, TokenPositions

pytestmark = pytest.mark.kernels


@pytest.fixture(autouse=True)
def on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute by the kernel's equations in float64, back too, which PyTorch does not promise on a processor; without tracing it."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def two_rows(first: Any, second: Any) -> TokenPositions:
    rows = [packed(*first), packed(*second)]
    longest = max(row.segments.shape[1] for row in rows)
    return TokenPositions(
        *(
            torch.cat([torch.nn.functional.pad(x, (0, longest - x.shape[1])) for x in side])
            for side in zip(*rows, strict=True)
            if side[0] is not None
        )
    )


def both_ways(rule: MaskRule, places: TokenPositions, position: str, fields: dict[str, Any]) -> list[list[Tensor]]:
    """Attend by blocks and by the reference; give what is gathered and the gradients of everything."""
    n, config = places.segments.shape[1], position_of(position)
    q, k, v = drawn(2, 4, n, 5), drawn(2, 2, n, 5), drawn(2, 2, n, 3)
    sinks = drawn(4) if fields["sinks"] else None
    blocks = plan_flex_mask(rule, places, places, config)
    mask, bias = blocks.dense()
    inputs = [x for x in (q, k, v, sinks, *config.bias_parameters) if x is not None]
    ways = (
        lambda: explicit_attention(q, k, v, AttentionArgs(mask, bias, 0.0, fields["softcap"], sinks)),
        lambda: flex_block_attention(q, k, v, blocks, AttentionArgs(softcap=fields["softcap"], sinks=sinks)),
    )
    results = []
    for way in ways:
        z = way()
        results.append([z, *torch.autograd.grad((z * torch.linspace(-1, 1, z.numel()).view(z.shape)).sum(), inputs)])
    return results


@pytest.mark.long
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(patterns(), SEQUENCES, SEQUENCES, st.sampled_from(FAMILIES), st.sampled_from(["none", "alibi"]), TERMS)
def test_blocks_equal_the_reference(
    fields: dict[str, Any], first: Any, second: Any, family: MaskRule, position: str, args: dict[str, Any]
) -> None:
    torch.manual_seed(1)
    places, rule = two_rows(first, second), family & pattern(fields)
    if plan_flex_mask(rule, places, places).parts:
        assert same(both_ways(rule, places, position, args), 1e-10)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:flex_attention called without", "ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("position", ["none", "alibi", "relative"])
def test_the_traced_kernel_equals_the_reference(position: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch's compiler sees it; what the bias is learned from gets its gradient only so."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    torch.manual_seed(1)
    places, args = two_rows(([100, 40], 3), ([150], 0)), {"softcap": 1.5, "sinks": True}
    for fields in (BIGBIRD, SPARSE):
        assert same(both_ways(CAUSAL_IN_SEGMENT & pattern(fields), places, position, args), 1e-10)


@settings(max_examples=20)
@given(patterns(), SEQUENCES, SEQUENCES, st.sampled_from(FAMILIES))
def test_every_pair_that_is_seen_is_in_a_block_that_is_listed(fields: dict[str, Any], first: Any, second: Any, family: MaskRule) -> None:
    """Blocks seen in part are asked again, so they may be too many, never too few; those listed as seen whole are."""
    places, rule = two_rows(first, second), family & pattern(fields)
    n = places.segments.shape[1]
    total = torch.zeros(2, 1, n, n, dtype=torch.long)
    for part in plan_flex_mask(rule, places, places).parts:
        mask = part.mask
        row, query, key = torch.arange(2)[:, None, None, None], torch.arange(n)[:, None], torch.arange(n)
        seen = mask.mask_mod(row, torch.tensor(0), query, key)
        padded = (
            torch.nn.functional.pad(seen, (0, -n % BLOCK_SIZE) * 2)
            .unflatten(3, (-1, BLOCK_SIZE))
            .unflatten(2, (-1, BLOCK_SIZE))
            .transpose(3, 4)
        )
        some, every = padded.flatten(4).any(-1), padded.flatten(4).all(-1)
        partly, whole = (
            flex._ordered_to_dense(numbers, found, -(-n // BLOCK_SIZE)) > 0
            for numbers, found in ((mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices))
        )
        assert not (partly & whole).any() and not (some & ~(partly | whole)).any() and not (whole & ~every).any()
        total += part.keys.from_order(part.queries.from_order(seen.double()).transpose(2, 3)).transpose(2, 3).long()
    assert torch.equal(total > 0, rule.dense(places, places).expand_as(total)) and int(total.max()) <= 1


def test_blocks_that_nobody_sees_are_not_listed() -> None:
    """A strided pattern's tokens are laid side by side; in their own order each block would see every other."""
    places, n = packed([4096], 0), 4096
    for fields, share in (({"kind": "window", "size": 100}, 0.07), ({"kind": "strided", "stride": 64}, 0.06), (BIGBIRD, 0.2)):
        blocks = plan_flex_mask(CAUSAL_IN_SEGMENT & pattern(fields), places, places)
        assert sum(part.pairs for part in blocks.parts) < share * n * n
    assert len(plan_flex_mask(CAUSAL_IN_SEGMENT & pattern(SPARSE), places, places).parts) == 2


def test_places_of_one_row_are_those_of_all() -> None:
    torch.manual_seed(1)
    q, k, v = drawn(3, 4, 200, 16), drawn(3, 4, 200, 16), drawn(3, 4, 200, 16)
    one = packed([150], 50)
    rule = CAUSAL_IN_SEGMENT & pattern(SPARSE)
    z = flex_block_attention(q, k, v, plan_flex_mask(rule, one, one, position_of("alibi")))
    mask, bias = plan_flex_mask(rule, one, one, position_of("alibi")).dense()
    assert torch.allclose(z, explicit_attention(q, k, v, AttentionArgs(mask, bias)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("why", ["dropout", "narrow", "float64", None])
def test_what_the_kernel_cannot_is_written_out(why: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    places = packed([150], 0)
    blocks = plan_flex_mask(CAUSAL_IN_SEGMENT & pattern(BIGBIRD), places, places, position_of("alibi"))
    dtype, width = torch.float64 if why == "float64" else torch.float32, 8 if why == "narrow" else 16
    q = torch.randn(1, 4, 150, width, dtype=dtype)
    taken: list[bool] = []

    def noted(*arguments: Any) -> Tensor:
        taken.append(True)
        return flex_block_attention(*arguments)

    rows = [row._replace(implementation=noted) if row.path == "FlexAttention" else row for row in kernels_of("block_sparse_attention")]
    monkeypatch.setitem(KERNEL_TABLE, "block_sparse_attention", rows)
    z = block_sparse_attention(q, q, q, blocks, AttentionArgs(dropout=0.5 if why == "dropout" else 0.0))
    assert bool(taken) == (why is None)
    if why != "dropout":
        mask, bias = blocks.dense()
        assert torch.allclose(z, explicit_attention(q, q, q, AttentionArgs(mask, bias)), rtol=0, atol=1e-5)


def test_models_take_blocks_where_the_device_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer whose contexts have blocks, tiles and matrices gathers the same."""
    monkeypatch.setattr(tiles_planning, "MIN_QUERIES", 256)
    layer = Attention(
        DecoderConfig.model_validate({"d_model": 64, "n_heads": 4, "n_kv_heads": 2, "attention": {"softcap": 5.0, "sinks": True}})
    )
    x, places, position = torch.randn(2, 1024, 64), packed([1024], 0, rows=2), position_of("relative").float()
    rules = [CAUSAL_IN_SEGMENT & pattern({"kind": "window", "size": 20}), SAME_SEGMENT]
    found: list[list[AttentionContext]] = []
    for with_blocks in (True, False):
        monkeypatch.setattr(kernel, "is_available", lambda device, with_blocks=with_blocks: with_blocks)
        found.append(build_contexts(position, places, places, rules))
    blocks, tiles = (contexts[0] for contexts in found)
    assert (
        type(blocks.block_mask).__name__ == "FlexMask" and type(tiles.block_mask).__name__ == "TiledMask" and found[0][1].block_mask is None
    )
    with torch.no_grad():
        (written, _) = build_contexts(position, places, places, rules, dense=True)
        assert torch.allclose(layer(x, blocks)[0], layer(x, written)[0], rtol=0, atol=1e-5)
        assert torch.allclose(layer(x, tiles)[0], layer(x, written)[0], rtol=0, atol=1e-5)


def test_only_a_gpu_has_them() -> None:
    assert not is_available(torch.device("cpu")) and not is_available(torch.device("mps"))


@pytest.mark.compile
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("position", ["none", "alibi", "relative"])
def test_the_compiled_kernel_equals_the_reference(position: str) -> None:
    torch.manual_seed(1)
    device = torch.device("cuda")
    config, places = position_of(position).float().to(device), packed([900, 300], 80, rows=2).map(lambda x: x.to(device))
    for fields in (BIGBIRD, SPARSE):
        blocks = plan_flex_mask(CAUSAL_IN_SEGMENT & pattern(fields), places, places, config)
        mask, bias = blocks.dense()
        q, k, v = (torch.randn(2, heads, 1280, 64, device=device, requires_grad=True) for heads in (4, 2, 2))
        sinks = torch.randn(4, device=device, requires_grad=True)
        inputs, results = [q, k, v, sinks, *config.bias_parameters], []
        for z in (
            flex_block_attention(q, k, v, blocks, AttentionArgs(softcap=5.0, sinks=sinks)),
            explicit_attention(q, k, v, AttentionArgs(mask, bias, 0.0, 5.0, sinks)),
        ):
            results.append([z, *torch.autograd.grad(z.square().sum(), inputs)])
        for a, b in zip(*results, strict=True):
            assert (a - b).abs().max() <= 0.01 * b.abs().max()  # products of float32 may be of TensorFloat-32 there
