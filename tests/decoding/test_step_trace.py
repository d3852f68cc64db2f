"""The steps of a recorded search are those of the search, which they do not change."""

import math

import pytest
import torch

from tests.decoding.models import tiny_model
from tests.decoding.tables import EOS, FORBIDDEN
from tests.decoding.test_model_search import SOURCES, VOCAB, run
from transom.config.decoding import SamplingConfig
from transom.data.batch import translation_batch
from transom.decoding.search.beam import BeamSearch
from transom.decoding.search.greedy import GreedySearch
from transom.decoding.search.interfaces import Strategy
from transom.decoding.search.sampling import MultinomialSampling
from transom.decoding.search.step_trace import RecordedStrategy, SearchStep
from transom.models.base import Seq2SeqModel

MAX_LENGTH = 7
STRATEGIES: list[Strategy] = [GreedySearch(EOS), BeamSearch(EOS, 3, 2, 0.6), MultinomialSampling(EOS, SamplingConfig(), (7,))]


@torch.no_grad()
def log_p_after(model: Seq2SeqModel, source: list[int], tokens: tuple[int, ...]) -> list[float]:
    """Compute ln p of each next token by a whole pass; tokens that the search forbids have probability 0."""
    batch = translation_batch([source[:-1]], [list(tokens)], [0])
    log_p: list[float] = model(batch)[0, -1].log_softmax(-1).tolist()
    last = len(tokens) + 1 == MAX_LENGTH
    return [-math.inf if token in FORBIDDEN or (last and token != EOS) else x for token, x in enumerate(log_p)]


def recorded(model: Seq2SeqModel, strategy: Strategy, source: list[int]) -> tuple[list[SearchStep], list[tuple[tuple[int, ...], float]]]:
    recorder = RecordedStrategy(strategy, EOS, 4)
    (found,) = run(model, recorder, [source], MAX_LENGTH)
    assert found == run(model, strategy, [source], MAX_LENGTH)[0], "recording changes nothing"
    return recorder.steps, [(each.tokens, each.log_p) for each in found]


@pytest.mark.parametrize("source", SOURCES[:3], ids=str)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: type(each).__name__)
def test_candidates_are_those_of_a_whole_pass(strategy: Strategy, source: list[int]) -> None:
    model = tiny_model(VOCAB)
    steps, found = recorded(model, strategy, source)
    assert [step.number for step in steps] == [*range(1, len(steps) + 1)]
    ended = {}
    for step in steps:
        for each in step.hypotheses:
            expected = log_p_after(model, source, each.tokens)
            order = sorted(range(VOCAB), key=lambda token: -expected[token])
            assert [one.token for one in each.candidates] == [token for token in order[:4] if expected[token] > -math.inf]
            assert [one.p for one in each.candidates] == pytest.approx([math.exp(expected[one.token]) for one in each.candidates], abs=1e-9)
        for each in (*step.kept, *step.finished):
            parent = step.hypotheses[each.parent]
            expected = log_p_after(model, source, parent.tokens)
            assert each.chosen.p == pytest.approx(math.exp(expected[each.chosen.token]), abs=1e-9)
            assert each.log_p == pytest.approx(parent.log_p + expected[each.chosen.token], abs=1e-9)
            assert each.chosen.rank == sum(x > expected[each.chosen.token] + 1e-12 for x in expected)
        ended |= {step.hypotheses[each.parent].tokens: each.log_p for each in step.finished}
    for tokens, log_p in found:
        assert ended[tokens] == pytest.approx(log_p, abs=1e-6)


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_a_beam_keeps_the_best_extensions_and_drops_the_rest(source: list[int]) -> None:
    model, n = tiny_model(VOCAB), 3
    steps, _ = recorded(model, BeamSearch(EOS, n, 1, 0.0), source)
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        totals = {
            (i, token): each.log_p + x
            for i, each in enumerate(step.hypotheses)
            for token, x in enumerate(log_p_after(model, source, each.tokens))
        }
        ranked = sorted(totals, key=lambda pair: -totals[pair])
        live = [pair for pair in ranked if pair[1] != EOS and totals[pair] > -math.inf]
        assert [(each.parent, each.chosen.token) for each in step.finished] == sorted(pair for pair in ranked[:n] if pair[1] == EOS)
        if after is not None:
            assert [(each.parent, each.chosen.token) for each in step.kept] == live[:n]
            assert [each.tokens for each in after.hypotheses] == [(*step.hypotheses[i].tokens, token) for i, token in live[:n]]
        used = {each.parent for each in (*step.kept, *step.finished)}
        assert set(step.dropped) == set(range(len(step.hypotheses))) - used


def test_hypotheses_are_dropped() -> None:
    assert any(step.dropped for source in SOURCES for step in recorded(tiny_model(VOCAB), BeamSearch(EOS, 3, 1, 0.0), source)[0])


def test_a_single_source_is_recorded() -> None:
    with pytest.raises(AssertionError, match="one source is recorded at a time"):
        run(tiny_model(VOCAB), RecordedStrategy(GreedySearch(EOS), EOS), SOURCES[:2])
