"""Greedy and beam search against reference searches over random tables of probabilities."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.tables import EOS, FORBIDDEN, SOS, Table, every_hypothesis, slow_beam, slow_greedy
from transom.data.batch import PaddedSequences
from transom.decoding.search import loop
from transom.decoding.search.beam import BeamSearch
from transom.decoding.search.greedy import GreedySearch
from transom.decoding.search.interfaces import Hypothesis, LengthLimits, Strategy
from transom.decoding.search.loop import SearchRequest, SuppressTokens, search

Bounds = list[tuple[int, int]]


def run(table: Table, strategy: Strategy, sources: list[list[int]], bounds: Bounds) -> list[list[Hypothesis]]:
    limits = LengthLimits(torch.tensor([low for low, _ in bounds]), torch.tensor([high for _, high in bounds]))
    return search(table, SearchRequest(PaddedSequences.pad(sources), strategy, limits, SOS, EOS, [SuppressTokens(torch.tensor(FORBIDDEN))]))


def same(ours: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    assert [h.tokens for h in ours] == [h.tokens for h in theirs]
    assert [h.log_p for h in ours] == pytest.approx([h.log_p for h in theirs], abs=1e-9)
    assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-9)


bounds = st.tuples(st.integers(0, 3), st.integers(1, 5)).map(lambda b: (b[0], b[0] + b[1]))
batches = st.lists(st.tuples(st.lists(st.integers(3, 9), min_size=1, max_size=3), bounds), min_size=1, max_size=6)
seeds = st.integers(0, 10**6)
alphas = st.sampled_from([0.0, 0.3, 0.6, 1.0, 2.0])
sharpnesses = st.sampled_from([0.3, 1.0, 3.0, 8.0])


@settings(max_examples=60)
@given(seeds, batches, st.integers(1, 6), st.integers(1, 4), alphas, sharpnesses, st.integers(4, 7))
def test_beam_equals_a_slow_beam_that_never_stops_early(
    seed: int, rows: list[tuple[list[int], tuple[int, int]]], n_beams: int, n_best: int, alpha: float, sharpness: float, n_symbols: int
) -> None:
    table = Table(n_symbols, seed, sharpness)
    found = run(table, BeamSearch(EOS, n_beams, n_best, alpha), [source for source, _ in rows], [b for _, b in rows])
    for ours, (source, (min_length, max_length)) in zip(found, rows, strict=True):
        same(ours, slow_beam(table, tuple(source), n_beams, min_length, max_length, alpha)[:n_best])


@settings(max_examples=30)
@given(seeds, st.lists(bounds.filter(lambda b: b[1] <= 5), min_size=1, max_size=3), st.integers(1, 5), alphas, sharpnesses)
def test_a_beam_as_wide_as_the_space_equals_exhaustive_search(
    seed: int, limits: Bounds, n_best: int, alpha: float, sharpness: float
) -> None:
    table = Table(5, seed, sharpness)
    sources = [[3 + i] for i in range(len(limits))]
    found = run(table, BeamSearch(EOS, 64, n_best, alpha), sources, limits)
    for ours, source, (min_length, max_length) in zip(found, sources, limits, strict=True):
        same(ours, every_hypothesis(table, tuple(source), min_length, max_length, alpha)[:n_best])


@settings(max_examples=40)
@given(seeds, batches, alphas, sharpnesses)
def test_greedy_equals_a_slow_greedy(seed: int, rows: list[tuple[list[int], tuple[int, int]]], alpha: float, sharpness: float) -> None:
    table = Table(6, seed, sharpness)
    found = run(table, GreedySearch(EOS, alpha), [source for source, _ in rows], [b for _, b in rows])
    for ours, (source, (min_length, max_length)) in zip(found, rows, strict=True):
        same(ours, [slow_greedy(table, tuple(source), min_length, max_length, alpha)])


@settings(max_examples=20)
@given(seeds, batches, st.sampled_from([GreedySearch(EOS, 0.6), BeamSearch(EOS, 3, 2, 0.6)]))
def test_a_source_gets_the_same_answer_alone_and_in_company(
    seed: int, rows: list[tuple[list[int], tuple[int, int]]], strategy: Strategy
) -> None:
    table = Table(6, seed, dtype=torch.float32)
    together = run(table, strategy, [source for source, _ in rows], [b for _, b in rows])
    assert together == [run(table, strategy, [source], [b])[0] for source, b in rows]


@pytest.mark.parametrize("strategy", [GreedySearch(EOS, 0.6), BeamSearch(EOS, 3, 2, 0.6)])
def test_when_done_sources_are_dropped_changes_nothing(strategy: Strategy, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, bounds = [[3 + i, 4] for i in range(12)], [(i % 3, 4 + i) for i in range(12)]
    found = []
    for share in (0.0, 0.25, 1.0):
        monkeypatch.setattr(loop, "DROP_FRACTION", share)
        found.append(run(Table(6, 5, dtype=torch.float32), strategy, sources, bounds))
    assert found[0] == found[1] == found[2]


class Cliff(Table):
    """The end token is certain after three words and improbable before. The common stopping rule stops at the first improbable endings."""

    def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
        if len(prefix) >= 6:
            return torch.tensor([-50.0, -50.0, 50.0, -50.0, -50.0], dtype=torch.float64)
        return torch.tensor([-50.0, -50.0, -2.5, 0.0, -2.6], dtype=torch.float64)


def test_search_goes_on_while_a_better_hypothesis_can_come() -> None:
    table = Cliff(5, 0)
    best = every_hypothesis(table, (3,), 0, 9, 1.0)[0]
    [[ours]] = run(table, BeamSearch(EOS, 2, 1, 1.0), [[3]], [(0, 9)])
    assert best.tokens == (3,) * 6
    same([ours], [best])


def test_search_stops_as_soon_as_nothing_better_can_come() -> None:
    class Sure(Table):
        def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
            return torch.tensor([-50.0, -50.0, 50.0 if len(prefix) == 2 else -50.0, 0.0, -50.0], dtype=torch.float64)

    table = Sure(5, 0)
    [[ours]] = run(table, BeamSearch(EOS, 4, 1, 0.6), [[3]], [(0, 200)])
    assert (ours.tokens, table.n_steps) == ((3, 3), 3)


def test_done_sources_leave_the_batch() -> None:
    class AsLongAsTheSource(Table):
        def logits(self, source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
            return torch.tensor([-50.0, -50.0, 50.0 if len(prefix) == len(source) else -50.0, 0.0, -50.0], dtype=torch.float64)

    sources = [[3] * length for length in (8, 1, 4, 2)]
    for strategy in (GreedySearch(EOS), BeamSearch(EOS, 3)):
        table = AsLongAsTheSource(5, 0)
        found = run(table, strategy, sources, [(0, 20)] * 4)
        assert [h.tokens for [h] in found] == [tuple(source) for source in sources]
        assert table.n_steps == 9
        assert table.rows_read == strategy.n_beams * sum(len(source) + 1 for source in sources)


def test_n_best_holds_no_more_than_there_is() -> None:
    [found] = run(Table(4, 1), BeamSearch(EOS, 4, 4, 0.6), [[3]], [(0, 2)])
    assert {h.tokens for h in found} == {(), (3,)}


def test_log_p_of_what_is_allowed_does_not_change_under_limits() -> None:
    table = Table(6, 3)
    [[free]] = run(table, BeamSearch(EOS, 64, 1, 0.0), [[3]], [(0, 4)])
    [[bound]] = run(table, BeamSearch(EOS, 64, 1, 0.0), [[3]], [(len(free.tokens), len(free.tokens) + 1)])
    same([bound], [free])
