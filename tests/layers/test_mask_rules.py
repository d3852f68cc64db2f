"""Mask rules against their definitions, and tile statuses against the dense mask."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter
from torch import Tensor

from transom.config.patterns import AnyBlockPattern
from transom.layers.attention import causal_mask, same_segment_mask
from transom.layers.masks.mask_rules import (
    CAUSAL,
    CAUSAL_IN_SEGMENT,
    PREFIX_LM,
    SAME_SEGMENT,
    TILE_SIZE,
    MaskRule,
    TokenPositions,
    build_rule,
)

LEAVES: list[dict[str, Any]] = [
    {"kind": "full"},
    *({"kind": "window", "size": size} for size in (1, 3, 40, 200)),
    *({"kind": "window-2d", "size": size} for size in (1, 2, 5)),
    *({"kind": "strided", "stride": stride} for stride in (1, 3, 32, 100)),
    *({"kind": "block-local", "size": size} for size in (1, 5, 64, 90)),
    *({"kind": "summary", "stride": stride, "columns": columns} for stride, columns in ((4, 1), (32, 3), (100, 7), (5, 5))),
    *({"kind": "logsparse", "window": local} for local in (1, 9, 70)),
    *({"kind": "global", "size": size} for size in (1, 2, 70)),
    {"kind": "prefix"},
    *({"kind": "random", "blocks": blocks, "size": size, "seed": seed} for blocks, size, seed in ((1, 2, 3), (3, 30, 1), (2, 64, 9))),
]


WIDTH = 12
"""Patches per row of an image."""
FAMILIES = [SAME_SEGMENT, CAUSAL_IN_SEGMENT, PREFIX_LM]
"""Mask rules of an encoder, a decoder and a prefix-LM."""


def pattern(drawn: Any) -> MaskRule:
    return build_rule(TypeAdapter(AnyBlockPattern).validate_python(drawn), WIDTH)


def patterns(small: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a pattern, simple or combined."""
    leaves = st.sampled_from(
        [leaf for leaf in LEAVES if not small or max((v for v in leaf.values() if isinstance(v, int)), default=0) < 10]
    )
    return st.recursive(
        leaves,
        lambda inner: st.fixed_dictionaries(
            {"kind": st.sampled_from(["any", "all", "not"]), "patterns": st.lists(inner, min_size=1, max_size=3)}
        ),
        max_leaves=4,
    )


def packed(lengths: list[int], padding: int, rows: int = 1) -> TokenPositions:
    """Pack sequences, the first third of each a prefix, followed by padding."""
    positions = torch.cat([*(torch.arange(n) for n in lengths), torch.arange(padding)])[None].expand(rows, -1)
    segments = torch.cat([*(torch.full((n,), i + 1) for i, n in enumerate(lengths)), torch.zeros(padding, dtype=torch.long)])[None]
    prefix = torch.cat([*(torch.arange(n) < n // 3 for n in lengths), torch.zeros(padding, dtype=torch.bool)])[None]
    return TokenPositions(positions, segments.expand(rows, -1), prefix.expand(rows, -1))


DEFINITIONS: dict[str, Callable[[Any, int, int], bool]] = {
    "full": lambda p, i, j: True,
    "window": lambda p, i, j: -p.size < j - i < p.size,
    "window-2d": lambda p, i, j: max(abs(i // WIDTH - j // WIDTH), abs(i % WIDTH - j % WIDTH)) < p.size,
    "strided": lambda p, i, j: (i - j) % p.stride == 0,
    "block-local": lambda p, i, j: math.floor(i / p.size) == math.floor(j / p.size),
    "summary": lambda p, i, j: j % p.stride in range(p.stride - p.columns, p.stride),
    "logsparse": lambda p, i, j: abs(i - j) < p.window or abs(i - j) in {2**e for e in range(20)},
    "global": lambda p, i, j: i in range(p.size) or j in range(p.size),
    "prefix": lambda p, i, j: j < 50,
}


@pytest.mark.parametrize("fields", [leaf for leaf in LEAVES if leaf["kind"] != "random"], ids=str)
def test_a_rule_is_its_definition(fields: dict[str, Any]) -> None:
    config, n = TypeAdapter(AnyBlockPattern).validate_python(fields), 150
    places = packed([n], 0)
    expected = torch.tensor([[DEFINITIONS[config.kind](config, i, j) for j in range(n)] for i in range(n)])
    assert torch.equal(build_rule(config, WIDTH).dense(places, places)[0, 0], expected)


def test_the_figures_of_the_papers() -> None:
    """Causal patterns match rows of the figures of Child et al. (2019, figure 3) and Li et al. (2019, figure 3)."""
    places = packed([10], 0)

    def row(fields: dict[str, Any], i: int) -> list[int]:
        return [int(j) for j in (CAUSAL_IN_SEGMENT & pattern(fields)).dense(places, places)[0, 0, i].nonzero()[:, 0]]

    assert row({"kind": "any", "patterns": [{"kind": "window", "size": 3}, {"kind": "strided", "stride": 3}]}, 8) == [2, 5, 6, 7, 8]
    assert row({"kind": "any", "patterns": [{"kind": "block-local", "size": 3}, {"kind": "summary", "stride": 3, "columns": 1}]}, 7) == [
        2,
        5,
        6,
        7,
    ]
    assert row({"kind": "logsparse", "window": 1}, 9) == [1, 5, 7, 8, 9]


def test_and_or_and_not_are_those_of_sets() -> None:
    places = packed([70, 20], 6)
    a, b = pattern({"kind": "window", "size": 5}), pattern({"kind": "strided", "stride": 4})
    left, right = (rule.dense(places, places) for rule in (a, b))
    assert torch.equal((a & b).dense(places, places), left & right)
    assert torch.equal((a | b).dense(places, places), left | right)
    assert torch.equal((~a).dense(places, places), ~left)
    assert torch.equal(pattern({"kind": "not", "patterns": ["full"]}).dense(places, places), torch.zeros_like(left))


def test_families_rules_are_the_masks_written_out() -> None:
    places = packed([5, 3, 7], 4)
    alike = same_segment_mask(places.segments, places.segments)
    assert torch.equal(SAME_SEGMENT.dense(places, places), alike)
    assert torch.equal(CAUSAL_IN_SEGMENT.dense(places, places), alike & causal_mask(19, 19))
    assert places.prefix is not None
    both_ways = alike & (causal_mask(19, 19) | places.prefix[:, None, None])
    assert torch.equal(PREFIX_LM.dense(places, places), both_ways) and not torch.equal(both_ways, alike & causal_mask(19, 19))
    without = places._replace(prefix=None)
    assert torch.equal(PREFIX_LM.dense(without, without), CAUSAL_IN_SEGMENT.dense(without, without))


def test_random_blocks_are_few_the_same_at_any_length_and_spread() -> None:
    rule, n_blocks = pattern({"kind": "random", "blocks": 3, "size": 1}), 400
    places = packed([n_blocks], 0)
    seen = rule.dense(places, places)[0, 0]
    assert torch.equal(seen, seen.T) and not seen.diagonal().any()
    before = seen.tril().sum(1)
    assert before.max() == 3 and before[50:].float().mean() > 2.8  # a few are drawn twice
    short = packed([50], 0)
    assert torch.equal(rule.dense(short, short)[0, 0], seen[:50, :50])
    drawn = seen.tril().nonzero()
    assert (drawn[:, 1] / drawn[:, 0]).mean().item() == pytest.approx(0.5, abs=0.03)
    other = pattern({"kind": "random", "blocks": 3, "size": 1, "seed": 2}).dense(places, places)[0, 0]
    assert (seen & other).sum() < 0.1 * seen.sum()


def tiled(places: TokenPositions) -> TokenPositions:
    return places.map(lambda x: x.unflatten(1, (-1, TILE_SIZE)))


@settings(max_examples=150)
@given(patterns(), st.lists(st.integers(1, 150), min_size=1, max_size=3), st.sampled_from(FAMILIES), st.integers(0, 2**31))
def test_tile_status_is_never_too_strict(fields: dict[str, Any], lengths: list[int], family: MaskRule, seed: int) -> None:
    places = packed(lengths, -sum(lengths) % TILE_SIZE)
    if seed % 2:  # in any order
        order = torch.randperm(places.positions.shape[1], generator=torch.Generator().manual_seed(seed))
        places = places.map(lambda x: x[:, order])
    rule = family & pattern(fields)
    tiles: Tensor = rule.dense(places, places)[:, 0].unflatten(1, (-1, TILE_SIZE)).unflatten(3, (-1, TILE_SIZE))
    status = rule.classify_tile(tiled(places), tiled(places))
    assert (status.any_visible | ~tiles.any(4).any(2)).all()
    assert (~status.all_visible | tiles.all(4).all(2)).all()


@pytest.mark.parametrize("fields", [leaf for leaf in LEAVES if leaf["kind"] not in ("strided", "window-2d")], ids=str)
def test_tile_status_is_exact_for_one_sequence(fields: dict[str, Any]) -> None:
    if fields["kind"] == "random" and fields["size"] < TILE_SIZE / 3:
        fields = fields | {"size": 22}
    places = packed([5 * TILE_SIZE], 0)
    rule = pattern(fields)
    tiles: Tensor = rule.dense(places, places)[:, 0].unflatten(1, (-1, TILE_SIZE)).unflatten(3, (-1, TILE_SIZE))
    assert torch.equal(rule.classify_tile(tiled(places), tiled(places)).any_visible.expand(1, 5, 5), tiles.any(4).any(2))
    assert torch.equal(CAUSAL.classify_tile(tiled(places), tiled(places)).all_visible, torch.ones(5, 5).tril(-1)[None] > 0)
