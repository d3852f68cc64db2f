"""Greedy search by native calls finds the same tokens and log probabilities as the loop over single native steps."""

import math
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.test_native_decoder import EOS, LANGUAGE_VARIANTS, SOS, VOCAB, language_model, library, model_of, needs_library
from transom.data.batch import PaddedSequences
from transom.decoding.backends.native_decoder import STEPS_PER_CALL, NativeLanguageModel, NativeSeq2Seq, WeightType
from transom.decoding.packed_linear import WEIGHT_TYPES
from transom.decoding.search.beam import BeamSearch
from transom.decoding.search.greedy import GreedySearch
from transom.decoding.search.interfaces import Hypothesis, LengthLimits, LogitsProcessor, Strategy
from transom.decoding.search.loop import MergeEndTokens, SearchRequest, SuppressTokens, search, search_steps

pytestmark = [needs_library, pytest.mark.kernels]

LENGTHS = [5, 1, 3, 2, 20, 4, 7]


def translator(kind: WeightType = "fp32", **fields: object) -> NativeSeq2Seq:
    model = model_of({"norm_placement": "pre", **fields}, torch.float32)
    return NativeSeq2Seq(library(), model, kind, model.encode)


@cache
def constant_translator() -> tuple[NativeSeq2Seq, torch.Tensor]:
    """Return a translator whose logits are the same whatever it reads, and these logits, to be set."""
    model = model_of({"tie_embeddings": "none", "head_bias": True}, torch.float32)
    with torch.no_grad():
        model.unembedding.weight.zero_()
    found = NativeSeq2Seq(library(), model, "fp32", model.encode)
    logits = torch.zeros(VOCAB)
    found.decoder._layout.unembed.bias = logits.data_ptr()
    return found, logits


def requested(
    max_length: Sequence[int],
    min_length: Sequence[int] | None = None,
    processors: Sequence[LogitsProcessor] = (),
    strategy: Strategy | None = None,
) -> SearchRequest:
    generator = torch.Generator().manual_seed(1)
    sources = [torch.randint(3, VOCAB, (1 + i % 6,), generator=generator).tolist() for i in range(len(max_length))]
    limits = LengthLimits(torch.tensor(min_length or [0] * len(max_length)), torch.tensor(max_length))
    strategy = strategy or GreedySearch(EOS, 0.6)
    return SearchRequest(PaddedSequences.pad(sources), strategy, limits, SOS, EOS, processors)


def by_steps(model: NativeSeq2Seq | NativeLanguageModel, request: SearchRequest) -> list[list[Hypothesis]]:
    """Search by the loop that other strategies and models use."""
    steps = search_steps(model, request)
    while True:
        try:
            next(steps)
        except StopIteration as over:
            return list(over.value)


@pytest.mark.parametrize("kind", list(WEIGHT_TYPES))
@pytest.mark.parametrize("n_threads", [1, 3])
def test_it_finds_what_the_loop_finds(kind: WeightType, n_threads: int) -> None:
    model, before = translator(kind), torch.get_num_threads()
    max_length, min_length = (LENGTHS * 6)[:40], [length // 2 for length in (LENGTHS * 6)[:40]]
    suppressed = [SuppressTokens(torch.tensor(tokens, dtype=torch.long)) for tokens in ([0, SOS, 7], [])]
    request = requested(max_length, min_length, suppressed)
    memory = model.encode(request.source)
    model.encode = lambda source: memory  # with and without inference mode, the encoder may round in other ways
    torch.set_num_threads(n_threads)
    try:
        found, expected = model.search(request), by_steps(model, request)
    finally:
        torch.set_num_threads(before)
    assert found == expected
    assert max(map(len, (of_source[0].tokens for of_source in expected))) > STEPS_PER_CALL
    tokens = {token for of_source in expected for token in of_source[0].tokens}
    assert len(tokens) > 5 and not tokens & {0, SOS, 7}
    assert search(model, request) == expected


@pytest.mark.parametrize("fields", LANGUAGE_VARIANTS[:3])
def test_texts_go_on_as_in_the_loop(fields: dict[str, object]) -> None:
    model = NativeLanguageModel(library(), language_model(fields).float(), "bf16")
    limits = LengthLimits(torch.tensor([0, 9, 0]), torch.tensor([12, 10, 1]))
    prompts = PaddedSequences.pad([[4, 5, 6], [7, 8, 9], [10, 11, 12]])
    request = SearchRequest(prompts, GreedySearch(EOS), limits, prompts.tokens[:, -1], EOS, [])
    assert model.search(request) == by_steps(model, request)


@settings(max_examples=60)
@given(st.data())
def test_limits_suppressed_tokens_and_ties(data: st.DataObject) -> None:
    """Many logits are equal: of equal ones the first token follows."""
    (model, logits), n = constant_translator(), data.draw(st.integers(1, 5))
    numbers = st.sampled_from([-1.0, 0.0, 1.0, 2.0, -math.inf])
    logits.copy_(torch.tensor(data.draw(st.lists(numbers, min_size=VOCAB, max_size=VOCAB))))
    logits[EOS] = data.draw(st.sampled_from([-1.0, 1.0, 2.0]))
    suppressed = data.draw(st.lists(st.integers(0, VOCAB - 1).filter(lambda token: token != EOS)))
    max_length = data.draw(st.lists(st.integers(1, 20), min_size=n, max_size=n))
    min_length = [data.draw(st.integers(0, longest - 1)) for longest in max_length]
    request = requested(max_length, min_length, [SuppressTokens(torch.tensor(suppressed, dtype=torch.long))])
    found = model.search(request)
    assert found is not None
    log_p = logits.log_softmax(0)
    for (hypothesis,), longest, least in zip(found, max_length, min_length, strict=True):
        expected, total = list[int](), 0.0
        while not expected or expected[-1] != EOS:
            allowed = [i for i in range(VOCAB) if i not in suppressed and (i != EOS or len(expected) >= least)]
            best = max(allowed, key=lambda i: (log_p[i].item(), -i)) if len(expected) + 1 < longest else EOS
            expected.append(best)
            total += log_p[best].item()
        assert hypothesis.tokens == tuple(expected[:-1])
        assert hypothesis.log_p == pytest.approx(total, abs=1e-4)


def test_not_a_number_ends_at_the_maximum_length() -> None:
    model, logits = constant_translator()
    logits.fill_(math.nan)
    request = requested([3, 5], processors=[SuppressTokens(torch.tensor([0, SOS, 5]))])
    found, expected = model.search(request), by_steps(model, request)
    assert found is not None
    assert [each[0].tokens for each in found] == [each[0].tokens for each in expected]
    assert all(math.isnan(each[0].log_p) for each in found)


def test_other_searches_are_left_to_the_loop() -> None:
    class Other(GreedySearch):
        """A strategy of the user's own."""

    limits = [3, 4]
    refused: list[tuple[NativeSeq2Seq, SearchRequest]] = [
        (translator(), requested(limits, strategy=BeamSearch(EOS, 2))),
        (translator(), requested(limits, strategy=Other(EOS))),
        (translator(logit_softcap=2.0), requested(limits)),
        (translator(), requested(limits, processors=[MergeEndTokens(EOS, torch.tensor([5]), 0.0)])),
        (translator(), requested(limits, processors=[SuppressTokens(torch.tensor([EOS]))])),
        (translator(), requested(limits, strategy=GreedySearch(EOS + 1))),
    ]
    for model, request in refused:
        assert model.search(request) is None
    for token in (VOCAB, -VOCAB - 1):
        with pytest.raises(IndexError):
            search(translator(), requested(limits, processors=[SuppressTokens(torch.tensor([token]))]))
