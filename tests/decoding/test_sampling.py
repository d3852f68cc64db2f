"""Sampling through the decoding loop, against exact probabilities and in different batches."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from tests.decoding.tables import EOS, FORBIDDEN, SOS, Prefix, Table
from transom.config.decoding import SamplingConfig
from transom.data.batch import PaddedSequences
from transom.data.tokenizer.special_tokens import PAD
from transom.decoding.search.greedy import GreedySearch
from transom.decoding.search.interfaces import Hypothesis, LengthLimits, SearchState, Selector, StepModel, Strategy
from transom.decoding.search.loop import SearchRequest, SuppressTokens, search
from transom.decoding.search.sampling import MultinomialSampling

NEVER = float("-inf")

Bounds = list[tuple[int, int]]


def run(table: StepModel[Any, Any], strategy: Strategy, sources: list[list[int]], bounds: Bounds) -> list[Hypothesis]:
    limits = LengthLimits(torch.tensor([low for low, _ in bounds]), torch.tensor([high for _, high in bounds]))
    found = search(
        table, SearchRequest(PaddedSequences.pad(sources), strategy, limits, SOS, EOS, [SuppressTokens(torch.tensor(FORBIDDEN))])
    )
    return [hypothesis for [hypothesis] in found]


class Chain:
    """p(next | last) from a matrix: a model fast enough for many texts."""

    def __init__(self, n_symbols: int, seed: int) -> None:
        self.logits = 1.5 * torch.randn(n_symbols, n_symbols, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))

    def encode(self, source: PaddedSequences) -> PaddedSequences:
        return source

    def start(self, memory: PaddedSequences, n_beams: int, max_length: int) -> "Chain":
        return self

    def step(self, tokens: Tensor, cache: "Chain") -> Tensor:
        return self.logits[tokens]

    def reorder(self, rows: Tensor) -> None:
        """Do nothing: the model has no state."""

    def select_sources(self, sources: Tensor) -> None:
        """Do nothing: the model has no state."""


N_SYMBOLS, N_DRAWS, LENGTH = 9, 20_000, 3
WORDS = range(3, N_SYMBOLS)
PROMPT = (4, 7)


def slow_distribution(logits: list[float], rules: SamplingConfig, drawn: Prefix) -> dict[int, float]:
    """Apply all rules to one row, token by token."""
    total = sum(map(math.exp, logits))
    log_p = {token: logits[token] - math.log(total) for token in WORDS}
    for token in WORDS:
        if token in (*PROMPT, *drawn):
            log_p[token] *= rules.repetition_penalty
        log_p[token] -= drawn.count(token) * rules.frequency_penalty + (token in drawn) * rules.presence_penalty
    p = shares_of({token: math.exp(x / rules.temperature) for token, x in log_p.items()})
    if rules.top_k is not None:
        p = shares_of({token: p[token] for token in sorted(p, key=lambda token: -p[token])[: rules.top_k]})
    if rules.top_p is not None:
        p = first_of(p, {token: -q for token, q in p.items()}, rules.top_p)
    if rules.min_p is not None:
        p = shares_of({token: q for token, q in p.items() if q >= rules.min_p * max(p.values())})
    if rules.typical_p is not None:
        entropy = -sum(q * math.log(q) for q in p.values())
        p = first_of(p, {token: abs(-math.log(q) - entropy) for token, q in p.items()}, rules.typical_p)
    return p


def shares_of(weights: dict[int, float]) -> dict[int, float]:
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def first_of(p: dict[int, float], order: dict[int, float], mass: float) -> dict[int, float]:
    chosen: dict[int, float] = {}
    for token in sorted(p, key=order.__getitem__):
        if sum(chosen.values()) < mass:
            chosen[token] = p[token]
    return shares_of(chosen)


def chi_square(counts: Counter[Prefix], exact: dict[Prefix, float]) -> tuple[float, float]:
    """Return Pearson's chi-squared statistic and its critical value for p = 1e-4 (Wilson & Hilferty 1931)."""
    expected = {text: N_DRAWS * p for text, p in exact.items()}
    cells = [(counts[text], e) for text, e in expected.items() if e >= 5]
    rest = (N_DRAWS - sum(n for n, _ in cells), N_DRAWS - sum(e for _, e in cells))
    cells += [rest] if rest[1] >= 5 else []
    k = len(cells) - 1
    return sum((n - e) ** 2 / e for n, e in cells), k * (1 - 2 / (9 * k) + 3.719 * math.sqrt(2 / (9 * k))) ** 3


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"temperature": 1.7},
        {"temperature": 0.8, "top_k": 4, "top_p": 0.9},
        {"min_p": 0.1, "typical_p": 0.8},
        {"repetition_penalty": 1.5, "frequency_penalty": 0.6, "presence_penalty": -0.4, "top_p": 0.95},
    ],
    ids=lambda rules: " ".join(rules) or "none",
)
def test_texts_are_drawn_with_their_exact_probability(rules: dict[str, Any]) -> None:
    chain, setting = Chain(N_SYMBOLS, 2), SamplingConfig(seed=11, **rules)
    seen = torch.zeros(N_DRAWS, N_SYMBOLS, dtype=torch.bool)
    seen[:, PROMPT] = True
    strategy = MultinomialSampling(EOS, setting, tuple(range(N_DRAWS)), seen=seen)
    counts = Counter(h.tokens for h in run(chain, strategy, [[3]] * N_DRAWS, [(LENGTH, LENGTH + 1)] * N_DRAWS))

    def exact(setting: SamplingConfig) -> dict[Prefix, float]:
        texts: dict[Prefix, float] = {(): 1.0}
        for _ in range(LENGTH):
            texts = {
                (*text, token): p * q
                for text, p in texts.items()
                for token, q in slow_distribution(chain.logits[(SOS, *text)[-1]].tolist(), setting, text).items()
            }
        return texts

    truth = exact(setting)
    statistic, threshold = chi_square(counts, truth)
    assert sum(truth.values()) == pytest.approx(1.0) and set(counts) <= set(truth)
    assert statistic < threshold
    wrong, threshold = chi_square(counts, exact(setting.model_copy(update={"temperature": 1.1 * setting.temperature})))
    assert wrong > threshold


bounds = st.tuples(st.integers(0, 3), st.integers(1, 5)).map(lambda b: (b[0], b[0] + b[1]))
batches = st.lists(st.tuples(st.lists(st.integers(3, 9), min_size=1, max_size=3), bounds, st.integers(0, 99)), min_size=1, max_size=6)
Batch = list[tuple[list[int], tuple[int, int], int]]
STRONG = SamplingConfig(
    temperature=1.3, top_k=5, top_p=0.95, min_p=0.01, typical_p=0.97, repetition_penalty=1.2, frequency_penalty=0.1, seed=5
)


@settings(max_examples=40)
@given(st.integers(0, 10**6), batches, st.sampled_from([SamplingConfig(), STRONG]), st.randoms())
def test_a_samples_text_is_the_same_alone_and_in_any_company(seed: int, batch: Batch, rules: SamplingConfig, random: Any) -> None:
    table = Table(7, seed)

    def texts(*rows: int) -> list[Hypothesis]:
        sources, bounds, numbers = zip(*(batch[i] for i in rows), strict=True)
        seen = torch.tensor([[token % 3 == number % 3 for token in range(7)] for number in numbers])
        return run(table, MultinomialSampling(EOS, rules, numbers, seen=seen), list(sources), list(bounds))

    order = random.sample(range(len(batch)), len(batch))
    assert texts(*order) == [texts(i)[0] for i in order]


@settings(max_examples=40)
@given(st.integers(0, 10**6), batches, st.sampled_from([{}, {"top_k": 3, "top_p": 0.5, "min_p": 0.2, "typical_p": 0.5}]))
def test_temperature_0_is_greedy(seed: int, batch: Batch, rules: dict[str, Any]) -> None:
    for dtype in (torch.float32, torch.float64):
        table = Table(6, seed, dtype=dtype)
        sources, bounds = [source for source, _, _ in batch], [b for _, b, _ in batch]
        strategy = MultinomialSampling(EOS, SamplingConfig(temperature=0, **rules), tuple(range(len(batch))))
        assert run(table, strategy, sources, bounds) == run(table, GreedySearch(EOS), sources, bounds)


def test_temperature_0_is_greedy_among_equals() -> None:
    chain = Chain(700, 3)
    chain.logits = chain.logits.float().round()
    sources, bounds = [[3]] * 5, [(n, n + 20) for n in range(5)]
    found = run(chain, MultinomialSampling(EOS, SamplingConfig(temperature=0), tuple(range(5))), sources, bounds)
    assert found == run(chain, GreedySearch(EOS), sources, bounds)


def test_temperature_0_minds_penalties() -> None:
    table, strategy = (
        Fixed([0.0, 0.0, -9.0, 3.0, 2.0, 1.0]),
        MultinomialSampling(EOS, SamplingConfig(temperature=0, frequency_penalty=0.8), (0,)),
    )
    for start in (SOS, 3):  # which is not drawn, so it does not count
        limits = LengthLimits(torch.tensor([0]), torch.tensor([7]))
        [[found]] = search(
            table, SearchRequest(PaddedSequences.pad([[3]]), strategy, limits, start, EOS, [SuppressTokens(torch.tensor(FORBIDDEN))])
        )
        assert found.tokens == (3, 3, 4, 3, 4, 5)  # 3, 2.2 and 1.4 against 2 and 1.2, then against 1


def test_seeds_and_samples_give_other_texts() -> None:
    table, bounds = Table(9, 1, sharpness=0.3), [(12, 13)] * 4

    def texts(seed: int, samples: tuple[int, ...]) -> list[Prefix]:
        return [h.tokens for h in run(table, MultinomialSampling(EOS, SamplingConfig(seed=seed), samples), [[3]] * 4, bounds)]

    first = texts(1, (0, 1, 2, 3))
    assert texts(1, (0, 1, 2, 3)) == first
    assert texts(1, (3, 3, 0, 1)) == [first[3], first[3], first[0], first[1]]
    assert len({*first, *texts(2, (0, 1, 2, 3))}) == 8


class Highest:
    """A bit generator that returns only ones."""

    def __init__(self, seed: np.random.SeedSequence) -> None: ...

    def random_raw(self, n: int) -> NDArray[np.uint64]:
        return np.full(n, 2**64 - 1, np.uint64)


def test_noise_is_numpys_and_below_1(monkeypatch: pytest.MonkeyPatch) -> None:
    table, n, seed, sample = Fixed([NEVER, NEVER, NEVER, 0.0, 0.0, 0.0, 0.0]), 40, 2**40, 12
    noise = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, sample]))).random(n)
    strategy = MultinomialSampling(EOS, SamplingConfig(seed=seed), (sample,))
    assert run(table, strategy, [[3]], [(0, n + 1)])[0].tokens == tuple(3 + int(4 * x) for x in noise)
    monkeypatch.setattr(np.random, "Philox", Highest)
    assert run(table, strategy, [[3]], [(0, n + 1)])[0].tokens == (6,) * n


class Whole(Table):
    """The next token depends on the whole text, independent of where the prompt ends."""

    def logits(self, source: Prefix, prefix: Prefix) -> Tensor:
        return super().logits((), (*source, *prefix))


@pytest.mark.parametrize("rules", [{}, {"temperature": 1.5, "top_p": 0.9, "repetition_penalty": 1.8}], ids=["plain", "with rules"])
def test_an_interrupted_text_goes_on_as_it_would_have(rules: dict[str, Any]) -> None:
    table, n, prompt = Whole(9, 4, sharpness=1.0), 14, [5, 3]

    def go_on(number: int, written: Prefix, first: int) -> Hypothesis:
        seen = torch.zeros(1, 9, dtype=torch.bool)
        seen[0, [*prompt, *written]] = True
        strategy = MultinomialSampling(EOS, SamplingConfig(**rules), (number,), first, seen)
        return run(table, strategy, [[*prompt, *written]], [(n - len(written), n - len(written) + 1)])[0]

    for number in range(4):
        whole = go_on(number, (), 0)
        for cut in (1, 6, n):
            rest = go_on(number, whole.tokens[:cut], cut)
            assert whole.tokens[cut:] == rest.tokens
        assert go_on(number, whole.tokens[:6], 0).tokens != whole.tokens[6:]


@pytest.mark.parametrize("rules", [SamplingConfig(), STRONG], ids=["plain", "strong"])
def test_log_p_is_the_models_own(rules: SamplingConfig) -> None:
    table, sources = Table(8, 6), [[3, 4], [5], [6, 6, 6]]
    for source, found in zip(sources, run(table, MultinomialSampling(EOS, rules, (0, 1, 2)), sources, [(2, 9)] * 3), strict=True):
        text = (*found.tokens, EOS)
        own = sum(table.log_p(tuple(source), text[:i])[token] for i, token in enumerate(text))
        assert found.log_p == found.score == pytest.approx(own, abs=1e-9)


@pytest.mark.parametrize("rules", [SamplingConfig(), SamplingConfig(temperature=0), STRONG], ids=["plain", "greedy", "strong"])
def test_padding_comes_behind_the_end_and_log_p_is_left_as_it_is(rules: SamplingConfig) -> None:
    n = 8
    limits = LengthLimits(torch.zeros(n, dtype=torch.long), torch.full((n,), 30))
    selection: Selector = MultinomialSampling(EOS, rules, tuple(range(n))).begin(limits)
    state = SearchState(torch.full((n, 1), SOS), torch.arange(n), limits, 1)
    for step in range(12):
        log_p = Table(6, step).logits((), ()).log_softmax(0).repeat(n, 1)
        log_p[0] = NEVER
        log_p[0, EOS if step == 3 else 4] = -1.0
        before = log_p.clone()
        move = selection.advance(log_p, state)
        assert torch.equal(log_p, before) and move.parents is None
        state.tokens_so_far = torch.cat([state.tokens_so_far, move.tokens[:, None]], 1)
    assert state.tokens_so_far[0].tolist() == [SOS, 4, 4, 4, EOS, *[PAD] * 8]
    [[hypothesis]] = selection.finalize([0], state)
    assert hypothesis == Hypothesis((4, 4, 4), -4.0, -4.0)
    for row, done in zip(state.tokens_so_far.tolist(), move.done.tolist(), strict=True):
        assert done == (EOS in row) and (not done or set(row[row.index(EOS) + 1 :]) <= {PAD})


class Fixed(Table):
    """The same logits at every step."""

    def __init__(self, logits: list[float], dtype: torch.dtype = torch.float32) -> None:
        super().__init__(len(logits), 0, dtype=dtype)
        self.fixed = torch.tensor(logits, dtype=dtype)

    def logits(self, source: Prefix, prefix: Prefix) -> Tensor:
        return self.fixed


@pytest.mark.parametrize(
    "rules", [SamplingConfig(), SamplingConfig(temperature=0), SamplingConfig(temperature=1e-300), STRONG], ids=lambda x: str(x.temperature)
)
@pytest.mark.parametrize(
    ("logits", "text"),
    [
        ([NEVER, NEVER, NEVER, NEVER, 0.0], (4, 4, 4, 4)),  # not even the end
        ([NEVER, NEVER, 0.0, NEVER, NEVER], ()),
        ([0.0, 0.0, 0.0, -3e38, 3e38], (4, 4, 4, 4)),
        ([3e38, 3e38, -2e38, -1e38, NEVER], ()),  # next to the forbidden, all else is beyond float32
        ([math.nan] * 5, ()),
        ([math.inf, 0.0, 0.0, math.inf, 0.0], ()),
    ],
    ids=["one", "end", "huge", "forbidden", "nan", "inf"],
)
def test_a_broken_model_does_not_break_the_search(logits: list[float], text: Prefix, rules: SamplingConfig) -> None:
    [found] = run(Fixed(logits), MultinomialSampling(EOS, rules, (0,)), [[3]], [(0, 5)])
    assert found.tokens == text
