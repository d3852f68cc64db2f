"""Search over models: with cache, batches and padding it equals a reference search without them."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoding.models import Uncached, tiny_model
from tests.decoding.tables import EOS, FORBIDDEN, SOS, slow_beam, slow_greedy
from transom.data.batch import PaddedSequences
from transom.decoding.search.beam import BeamSearch
from transom.decoding.search.greedy import GreedySearch
from transom.decoding.search.interfaces import Hypothesis, LengthLimits, Strategy
from transom.decoding.search.loop import SearchRequest, SuppressTokens, search
from transom.models.base import Seq2SeqModel

VOCAB = 9
MODELS: list[dict[str, object]] = [
    {},
    {"norm_placement": "pre"},
    {"d_head": 3, "d_value": 5},
    {"attention": {"output_projection": False}},
    *({"kind": "recurrent-seq2seq", "cell": "lstm", "attention": attention} for attention in ("none", "additive", "luong")),
    {"kind": "recurrent-seq2seq", "cell": "gru", "attention": {"kind": "luong", "input_feeding": False}},
]
SOURCES = [[3, 4, 5, 6, 2], [7, 2], [8, 8, 3, 2], [5, 2], [4, 6, 7, 8, 3, 3, 2]]


def run(model: Seq2SeqModel, strategy: Strategy, sources: list[list[int]], max_length: int = 7) -> list[list[Hypothesis]]:
    limits = LengthLimits(torch.zeros(len(sources), dtype=torch.long), torch.tensor([max_length - i % 2 for i in range(len(sources))]))
    return search(model, SearchRequest(PaddedSequences.pad(sources), strategy, limits, SOS, EOS, [SuppressTokens(torch.tensor(FORBIDDEN))]))


@pytest.mark.parametrize("fields", MODELS)
def test_cached_batched_padded_beam_equals_a_slow_beam_alone(fields: dict[str, object]) -> None:
    model = tiny_model(VOCAB, **fields)
    lengths = set()
    for i, ours in enumerate(run(model, BeamSearch(EOS, 3, 3, 0.0), SOURCES)):
        theirs = slow_beam(Uncached(model), tuple(SOURCES[i]), 3, 0, 7 - i % 2, 0.0)[:3]
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        assert [h.score for h in ours] == pytest.approx([h.score for h in theirs], abs=1e-9)
        lengths |= {len(h.tokens) for h in ours}
    assert len(lengths) > 1, "all hypotheses are of one length: the test shows little"


@pytest.mark.parametrize("fields", MODELS)
def test_cached_batched_padded_greedy_equals_a_slow_greedy_alone(fields: dict[str, object]) -> None:
    model = tiny_model(VOCAB, **fields)
    for i, [ours] in enumerate(run(model, GreedySearch(EOS), SOURCES)):
        theirs = slow_greedy(Uncached(model), tuple(SOURCES[i]), 0, 7 - i % 2, 0.0)
        assert ours.tokens == theirs.tokens
        assert ours.log_p == pytest.approx(theirs.log_p, abs=1e-9)


@settings(max_examples=6)
@given(
    st.integers(0, 10**4),
    st.lists(st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=8).map(lambda row: [*row, EOS]), min_size=2, max_size=4),
    st.sampled_from([GreedySearch(EOS), BeamSearch(EOS, 4, 2, 1.0)]),
)
def test_company_changes_no_answer(seed: int, sources: list[list[int]], strategy: Strategy) -> None:
    model = tiny_model(VOCAB, seed)
    together = run(model, strategy, sources, 9)
    for i, ours in enumerate(together):
        [alone] = run(model, strategy, sources[i : i + 1], 9 - i % 2)
        assert [h.tokens for h in ours] == [h.tokens for h in alone]
        assert [h.log_p for h in ours] == pytest.approx([h.log_p for h in alone], abs=1e-9)


def test_in_float32_answers_differ_only_where_two_are_as_good(record_property: Callable[[str, object], None]) -> None:
    model = tiny_model(VOCAB, dtype=torch.float32)
    draw = torch.Generator().manual_seed(1)
    sources = [[*torch.randint(3, VOCAB, (1 + i % 7,), generator=draw).tolist(), EOS] for i in range(40)]
    together = run(model, BeamSearch(EOS, 3, 1, 0.6), sources, 8)
    alone = [run(model, BeamSearch(EOS, 3, 1, 0.6), [source], 8 - i % 2)[0] for i, source in enumerate(sources)]
    differing = [(a, b) for [a], [b] in zip(together, alone, strict=True) if a.tokens != b.tokens]
    record_property("differing", len(differing))
    assert len(differing) < len(sources) / 4
    for [a], [b] in zip(together, alone, strict=True):
        assert a.score == pytest.approx(b.score, rel=1e-5)


def test_cross_attention_keys_are_kept_once_a_source() -> None:
    model = tiny_model(VOCAB)
    cache = model.start(model.encode(PaddedSequences.pad(SOURCES)), 4, 9)
    assert all(len(memory.k) == len(SOURCES) for memory in cache.memories)
    assert cache.blocks[0].read().k.shape[0] == 4 * len(SOURCES)
