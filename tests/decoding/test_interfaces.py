"""Parts of the decoding loop: top-k, length penalty, length limits and logits processors."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transom.config.decoding import BeamSearchConfig
from transom.decoding.search.interfaces import LengthLimits, SearchState, build_length_limits, length_penalty
from transom.decoding.search.loop import TOPK_BLOCK_SIZE, EnforceLengthLimits, MergeEndTokens, SuppressTokens, fast_topk

NEVER = float("-inf")


@pytest.mark.parametrize(
    "vocab", [1, 5, TOPK_BLOCK_SIZE, 3 * TOPK_BLOCK_SIZE, 16 * TOPK_BLOCK_SIZE, 16 * TOPK_BLOCK_SIZE + 1, 17 * TOPK_BLOCK_SIZE - 1, 10000]
)
@pytest.mark.parametrize("k", [1, 2, 5, 8])
@pytest.mark.parametrize("spread", [10**6, 20])
def test_top_tokens_equals_topk(vocab: int, k: int, spread: int) -> None:
    values = torch.randint(spread, (6, vocab), generator=torch.Generator().manual_seed(vocab + k)).float()
    values[0, vocab // 2 :] = NEVER
    values[1] = NEVER
    k = min(k, vocab)
    best, places = fast_topk(values, k)
    assert torch.equal(best, values.topk(k).values)
    assert torch.equal(values.gather(1, places), best)
    assert all(len(set(row)) == k for row in places.tolist())


def test_top_tokens_finds_the_last_symbol() -> None:
    values = torch.zeros(2, 40 * TOPK_BLOCK_SIZE + 7)
    values[0, -1] = values[1, 0] = 1.0
    assert fast_topk(values, 1)[1].tolist() == [[40 * TOPK_BLOCK_SIZE + 6], [0]]


@given(st.integers(1, 500), st.floats(0, 3))
def test_length_penalty_is_gnmts_and_grows(length: int, alpha: float) -> None:
    assert length_penalty(length, alpha) == pytest.approx((5 + length) ** alpha / (5 + 1) ** alpha)
    assert length_penalty(length + 1, alpha) >= length_penalty(length, alpha) >= 1.0


@pytest.mark.parametrize(
    ("fields", "source_length", "max_seq_len", "min_length", "max_length"),
    [
        ({}, 4, 512, 0, 22),
        ({}, 400, 512, 0, 256),
        ({}, 400, 100, 0, 100),
        ({"max_length": 7}, 4, 512, 0, 7),
        ({"max_length_ratio": 0.5}, 3, 512, 0, 11),
        ({"min_length": 40}, 4, 512, 40, 41),
        ({"min_length": 40}, 4, 20, 19, 20),
    ],
)
def test_limits_follow_the_settings(
    fields: dict[str, float], source_length: int, max_seq_len: int, min_length: int, max_length: int
) -> None:
    limits = build_length_limits([source_length, 10**4], BeamSearchConfig.model_validate(fields), max_seq_len)
    assert (int(limits.min_length[0]), int(limits.max_length[0])) == (min_length, max_length)
    assert int(limits.max_length[1]) <= max_seq_len


def state(length: int, limits: list[tuple[int, int]], n_beams: int) -> SearchState:
    bounds = LengthLimits(torch.tensor([low for low, _ in limits]), torch.tensor([high for _, high in limits]))
    return SearchState(torch.ones(len(limits) * n_beams, length + 1, dtype=torch.long), torch.arange(len(limits)), bounds, n_beams)


def banned(log_p: torch.Tensor) -> list[list[int]]:
    return [[i for i, value in enumerate(row) if value == NEVER] for row in log_p.tolist()]


def test_forbid_bans_its_symbols_and_nothing_else() -> None:
    log_p = torch.randn(2, 5)
    before = log_p.clone()
    after = SuppressTokens(torch.tensor([0, 3]))(log_p, state(0, [(0, 9)], 2))
    assert banned(after) == [[0, 3], [0, 3]]
    assert torch.equal(after[:, [1, 2, 4]], before[:, [1, 2, 4]])


@pytest.mark.parametrize(
    ("length", "expected"),
    [(0, [[2], []]), (1, [[2], []]), (2, [[], [0, 1, 3]]), (3, [[], [0, 1, 3]]), (4, [[0, 1, 3], [0, 1, 3]])],
)
def test_limits_ban_the_end_before_and_all_else_at_last(length: int, expected: list[list[int]]) -> None:
    log_p = torch.randn(4, 4)
    before = log_p.clone()
    after = EnforceLengthLimits(end=2)(log_p, state(length, [(2, 5), (0, 3)], 2))
    assert banned(after) == [row for row in expected for _ in range(2)]
    allowed = after != NEVER
    assert torch.equal(after[allowed], before[allowed])


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_the_end_token_has_the_probability_of_all_end_tokens(temperature: float) -> None:
    log_p = torch.randn(2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).log_softmax(1)
    after = MergeEndTokens(2, torch.tensor([4, 5]), temperature)(log_p.clone(), state(0, [(0, 9)], 2))
    assert (after[:, [4, 5]] < -1e8).all() and torch.equal(after[:, [0, 1, 3]], log_p[:, [0, 1, 3]])
    if temperature == 0:
        assert torch.equal(after[:, 2], log_p[:, [2, 4, 5]].amax(1))
    else:
        sampled, expected = ((x / temperature).softmax(1) for x in (after, log_p))
        assert torch.allclose(sampled[:, 2], expected[:, [2, 4, 5]].sum(1)) and torch.allclose(sampled[:, 0], expected[:, 0])


def test_the_end_is_banned_before_the_smallest_minimum_too() -> None:
    log_p = torch.randn(4, 4)
    after = EnforceLengthLimits(end=2)(log_p.clone(), state(1, [(2, 9), (3, 9)], 2))
    assert banned(after) == [[2]] * 4
    assert torch.equal(after[:, [0, 1, 3]], log_p[:, [0, 1, 3]])


def test_limits_leave_the_middle_untouched() -> None:
    log_p = torch.randn(4, 4)
    assert EnforceLengthLimits(end=2)(log_p, state(3, [(2, 9), (0, 9)], 2)) is log_p
    assert not math.isinf(log_p.abs().max())
