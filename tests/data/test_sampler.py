"""Every sample once per epoch, in an order determined by seed and epoch, with little padding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom.data.batch import Indices, batch_by_tokens
from transom.data.sampler import MicroBatching, padding_waste, plan_epoch

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=80)


def sides(drawn: list[tuple[int, int]]) -> tuple[Indices, Indices]:
    table = np.array(drawn, dtype=np.int64)
    return table[:, 0], table[:, 1]


@given(lengths, st.integers(40, 400), st.integers(0, 2**63), st.integers(0, 1000))
def test_every_sample_once_within_the_limit(drawn: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int) -> None:
    source, target = sides(drawn)
    plan = plan_epoch(source, target, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(drawn)))
    for batch in plan:
        assert 0 < len(batch) * max(source[batch].max(), target[batch].max()) <= batch_tokens


@given(lengths, st.integers(0, 9), st.integers(0, 9))
def test_the_plan_is_a_pure_function(drawn: list[tuple[int, int]], seed: int, epoch: int) -> None:
    plans = [plan_epoch(*sides(drawn), batch_tokens=100, seed=seed, epoch=epoch) for _ in range(2)]
    assert [batch.tolist() for batch in plans[0]] == [batch.tolist() for batch in plans[1]]


def many(n: int = 3000) -> tuple[Indices, Indices]:
    draw = np.random.default_rng(1)
    source = 2 + draw.poisson(12, n)
    return source, np.maximum(2, source + draw.integers(-4, 5, n))


def batches(seed: int, epoch: int) -> list[tuple[int, ...]]:
    return [tuple(batch.tolist()) for batch in plan_epoch(*many(), batch_tokens=600, seed=seed, epoch=epoch)]


def test_epochs_and_seeds_differ_in_order_and_composition() -> None:
    first = batches(1, 0)
    for other in (batches(1, 1), batches(2, 0), batches(0, 1)):
        assert len({frozenset(batch) for batch in first} & {frozenset(batch) for batch in other}) < len(first) // 10
        assert [sample for batch in first for sample in batch] != [sample for batch in other for sample in batch]


def test_batches_come_in_no_order_of_length() -> None:
    source, target = many()
    longest = [max(source[batch].max(), target[batch].max()) for batch in plan_epoch(source, target, batch_tokens=600, seed=1, epoch=0)]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.3


def test_padding_is_little() -> None:
    source, target = many()
    plan = plan_epoch(source, target, batch_tokens=2000, seed=1, epoch=0)
    by_longer_side = np.array_split(np.argsort(np.maximum(source, target), kind="stable"), len(plan))
    unsorted = np.array_split(np.arange(len(source)), len(plan))
    wastes = [padding_waste(batches, source, target) for batches in (plan, by_longer_side, unsorted)]
    assert wastes[0] < 0.8 * wastes[1] < 0.3 * wastes[2]


def test_padding_is_counted() -> None:
    table = np.array([1, 2, 4])
    assert padding_waste([np.array([0, 1]), np.array([2])], table) == 1 - 7 / 8
    assert padding_waste([np.array([0, 2])], table, np.array([4, 0, 4])) == 1 - 13 / 16
    assert padding_waste([np.array([1])], table) == 0


def test_plan_is_pinned() -> None:
    plan = plan_epoch(np.array([3, 9, 4, 4, 8, 2]), np.array([3, 8, 5, 4, 9, 2]), batch_tokens=18, seed=1, epoch=2)
    assert [batch.tolist() for batch in plan] == [[5, 0, 3], [2, 4], [1]]


def test_a_sample_must_fit() -> None:
    with pytest.raises(AssertionError):
        plan_epoch(np.array([3]), np.array([7]), batch_tokens=6, seed=1, epoch=0)


def test_a_sample_longer_than_a_batch_is_a_batch_of_its_own() -> None:
    batches = batch_by_tokens(np.array([3, 1, 0, 2]), np.array([2, 3, 9, 3]), batch_tokens=6)
    assert [batch.tolist() for batch in batches] == [[3, 1], [0], [2]]
    assert not list(batch_by_tokens(np.array([], np.int64), np.array([], np.int64), batch_tokens=6))


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 6))
def test_aligned_micro_batches_of_all_parts_are_those_of_one_process(n: int, grad_accum_steps: int, n_parts: int) -> None:
    whole = MicroBatching(grad_accum_steps).split(np.arange(n))
    parts = [MicroBatching(grad_accum_steps, part, n_parts, aligned=True).split(np.arange(n)) for part in range(n_parts)]
    for i, expected in enumerate(whole):
        rows = [micro_batches[i] for micro_batches in parts if i < len(micro_batches)]  # a part lacks the last micro-batches only
        assert sorted(np.concatenate(rows).tolist()) == expected.tolist() and all(map(len, rows))
    assert max(map(len, parts)) == len(whole)
