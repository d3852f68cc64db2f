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

from transom.config.patterns import Pattern
from transom.layers.attention import causal, same_segment
from transom.layers.masks.rule import BOTH_WAYS_IN_PREFIX, CAUSAL, LOOKING_BACK, SAME_SEGMENT, TILE, Places, Rule, rule_of

LEAVES: list[dict[str, Any]] = [
    {"kind": "full"},
    *({"kind": "window", "size": size} for size in (1, 3, 40, 200)),
    *({"kind": "window-2d", "size": size} for size in (1, 2, 5)),
    *({"kind": "strided", "stride": stride} for stride in (1, 3, 32, 100)),
    *({"kind": "local", "size": size} for size in (1, 5, 64, 90)),
    *({"kind": "summary", "stride": stride, "columns": columns} for stride, columns in ((4, 1), (32, 3), (100, 7), (5, 5))),
    *({"kind": "logarithmic", "local": local} for local in (1, 9, 70)),
    *({"kind": "global", "size": size} for size in (1, 2, 70)),
    {"kind": "prefix"},
    *({"kind": "random", "blocks": blocks, "size": size, "seed": seed} for blocks, size, seed in ((1, 2, 3), (3, 30, 1), (2, 64, 9))),
]


WIDTH = 12
"""Patches per row of an image."""
FAMILIES = [SAME_SEGMENT, LOOKING_BACK, BOTH_WAYS_IN_PREFIX]
"""Mask rules of an encoder, a decoder and a prefix-LM."""


def pattern(drawn: Any) -> Rule:
    return rule_of(TypeAdapter(Pattern).validate_python(drawn), WIDTH)


def patterns(small: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Draw a pattern, simple or combined."""
    leaves = st.sampled_from(
        [leaf for leaf in LEAVES if not small or max((v for v in leaf.values() if isinstance(v, int)), default=0) < 10]
    )
    return st.recursive(
        leaves,
        lambda inner: st.fixed_dictionaries(
            {"kind": st.sampled_from(["any", "all", "not"]), "of": st.lists(inner, min_size=1, max_size=3)}
        ),
        max_leaves=4,
    )


def packed(lengths: list[int], padding: int, rows: int = 1) -> Places:
    """Pack sequences, the first third of each a prefix, followed by padding."""
    positions = torch.cat([*(torch.arange(n) for n in lengths), torch.arange(padding)])[None].expand(rows, -1)
    segments = torch.cat([*(torch.full((n,), i + 1) for i, n in enumerate(lengths)), torch.zeros(padding, dtype=torch.long)])[None]
    prefix = torch.cat([*(torch.arange(n) < n // 3 for n in lengths), torch.zeros(padding, dtype=torch.bool)])[None]
    return Places(positions, segments.expand(rows, -1), prefix.expand(rows, -1))


DEFINITIONS: dict[str, Callable[[Any, int, int], bool]] = {
    "full": lambda p, i, j: True,
    "window": lambda p, i, j: -p.size < j - i < p.size,
    "window-2d": lambda p, i, j: max(abs(i // WIDTH - j // WIDTH), abs(i % WIDTH - j % WIDTH)) < p.size,
    "strided": lambda p, i, j: (i - j) % p.stride == 0,
    "local": lambda p, i, j: math.floor(i / p.size) == math.floor(j / p.size),
    "summary": lambda p, i, j: j % p.stride in range(p.stride - p.columns, p.stride),
    "logarithmic": lambda p, i, j: abs(i - j) < p.local or abs(i - j) in {2**e for e in range(20)},
    "global": lambda p, i, j: i in range(p.size) or j in range(p.size),
    "prefix": lambda p, i, j: j < 50,
}


@pytest.mark.parametrize("fields", [leaf for leaf in LEAVES if leaf["kind"] != "random"], ids=str)
def test_a_rule_is_its_definition(fields: dict[str, Any]) -> None:
    brick, n = TypeAdapter(Pattern).validate_python(fields), 150
    places = packed([n], 0)
    expected = torch.tensor([[DEFINITIONS[brick.kind](brick, i, j) for j in range(n)] for i in range(n)])
    assert torch.equal(rule_of(brick, WIDTH).matrix(places, places)[0, 0], expected)


def test_the_figures_of_the_papers() -> None:
    """Causal patterns match rows of the figures of Child et al. (2019, figure 3) and Li et al. (2019, figure 3)."""
    places = packed([10], 0)

    def row(fields: dict[str, Any], i: int) -> list[int]:
        return [int(j) for j in (LOOKING_BACK & pattern(fields)).matrix(places, places)[0, 0, i].nonzero()[:, 0]]

    assert row({"kind": "any", "of": [{"kind": "window", "size": 3}, {"kind": "strided", "stride": 3}]}, 8) == [2, 5, 6, 7, 8]
    assert row({"kind": "any", "of": [{"kind": "local", "size": 3}, {"kind": "summary", "stride": 3, "columns": 1}]}, 7) == [2, 5, 6, 7]
    assert row({"kind": "logarithmic", "local": 1}, 9) == [1, 5, 7, 8, 9]


def test_and_or_and_not_are_those_of_sets() -> None:
    places = packed([70, 20], 6)
    a, b = pattern({"kind": "window", "size": 5}), pattern({"kind": "strided", "stride": 4})
    left, right = (rule.matrix(places, places) for rule in (a, b))
    assert torch.equal((a & b).matrix(places, places), left & right)
    assert torch.equal((a | b).matrix(places, places), left | right)
    assert torch.equal((~a).matrix(places, places), ~left)
    assert torch.equal(pattern({"kind": "not", "of": ["full"]}).matrix(places, places), torch.zeros_like(left))


def test_families_rules_are_the_masks_written_out() -> None:
    places = packed([5, 3, 7], 4)
    alike = same_segment(places.segments, places.segments)
    assert torch.equal(SAME_SEGMENT.matrix(places, places), alike)
    assert torch.equal(LOOKING_BACK.matrix(places, places), alike & causal(19, 19))
    assert places.prefix is not None
    both_ways = alike & (causal(19, 19) | places.prefix[:, None, None])
    assert torch.equal(BOTH_WAYS_IN_PREFIX.matrix(places, places), both_ways) and not torch.equal(both_ways, alike & causal(19, 19))
    without = places._replace(prefix=None)
    assert torch.equal(BOTH_WAYS_IN_PREFIX.matrix(without, without), LOOKING_BACK.matrix(without, without))


def test_random_blocks_are_few_the_same_at_any_length_and_spread() -> None:
    rule, n_blocks = pattern({"kind": "random", "blocks": 3, "size": 1}), 400
    places = packed([n_blocks], 0)
    seen = rule.matrix(places, places)[0, 0]
    assert torch.equal(seen, seen.T) and not seen.diagonal().any()
    before = seen.tril().sum(1)
    assert before.max() == 3 and before[50:].float().mean() > 2.8  # a few are drawn twice
    short = packed([50], 0)
    assert torch.equal(rule.matrix(short, short)[0, 0], seen[:50, :50])
    drawn = seen.tril().nonzero()
    assert (drawn[:, 1] / drawn[:, 0]).mean().item() == pytest.approx(0.5, abs=0.03)
    other = pattern({"kind": "random", "blocks": 3, "size": 1, "seed": 2}).matrix(places, places)[0, 0]
    assert (seen & other).sum() < 0.1 * seen.sum()


def tiled(places: Places) -> Places:
    return places.each(lambda x: x.unflatten(1, (-1, TILE)))


@settings(max_examples=150)
@given(patterns(), st.lists(st.integers(1, 150), min_size=1, max_size=3), st.sampled_from(FAMILIES), st.integers(0, 2**31))
def test_no_tile_is_called_empty_or_whole_that_is_not(fields: dict[str, Any], lengths: list[int], family: Rule, seed: int) -> None:
    places = packed(lengths, -sum(lengths) % TILE)
    if seed % 2:  # in any order
        order = torch.randperm(places.positions.shape[1], generator=torch.Generator().manual_seed(seed))
        places = places.each(lambda x: x[:, order])
    rule = family & pattern(fields)
    tiles: Tensor = rule.matrix(places, places)[:, 0].unflatten(1, (-1, TILE)).unflatten(3, (-1, TILE))
    verdict = rule.judge(tiled(places), tiled(places))
    assert (verdict.some | ~tiles.any(4).any(2)).all()
    assert (~verdict.every | tiles.all(4).all(2)).all()


@pytest.mark.parametrize("fields", [leaf for leaf in LEAVES if leaf["kind"] not in ("strided", "window-2d")], ids=str)
def test_of_one_sequence_verdicts_are_exact(fields: dict[str, Any]) -> None:
    if fields["kind"] == "random" and fields["size"] < TILE / 3:
        fields = fields | {"size": 22}
    places = packed([5 * TILE], 0)
    rule = pattern(fields)
    tiles: Tensor = rule.matrix(places, places)[:, 0].unflatten(1, (-1, TILE)).unflatten(3, (-1, TILE))
    assert torch.equal(rule.judge(tiled(places), tiled(places)).some.expand(1, 5, 5), tiles.any(4).any(2))
    assert torch.equal(CAUSAL.judge(tiled(places), tiled(places)).every, torch.ones(5, 5).tril(-1)[None] > 0)
