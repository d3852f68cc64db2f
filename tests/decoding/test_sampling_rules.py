"""Each sampling rule against the transformers library and direct arithmetic."""

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from transom.config.decoding import SamplingConfig
from transom.decoding.search import sampling
from transom.decoding.search.sampling import (
    apply_count_penalties,
    apply_repetition_penalty,
    apply_temperature,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    sample_inverse_cdf,
    warp_logits,
)

NEVER = float("-inf")
BELOW_ONE = 1 - 2.0**-53
"""The largest random number that can be drawn."""
DOUBLE = {"rtol": 0, "atol": 1e-12}

Rule = Callable[[Tensor], Tensor]


def log_of(*p: float) -> Tensor:
    return torch.tensor([p], dtype=torch.float64).log()


def kept(log_p: Tensor) -> list[int]:
    [row] = log_p.tolist()
    return [token for token, value in enumerate(row) if value > NEVER]


def random_rows(vocab: int, seed: int = 1, spread: float = 3.0, banned: int = 0) -> Tensor:
    """Three rows of normalized log-probabilities with some tokens suppressed."""
    draws = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(3, vocab, dtype=torch.float64, generator=draws)
    for row in logits:
        row[torch.randperm(vocab, generator=draws)[:banned]] = NEVER
    return logits.log_softmax(1)


IDS = torch.tensor([[3, 3, 5], [0, 4, 2], [6, 6, 6]])
SEEN = torch.zeros(3, 1000, dtype=torch.bool).scatter_(1, IDS, True)

PEERS: dict[str, tuple[Rule, Any]] = {
    "temperature 0.3": (lambda x: apply_temperature(x, 0.3), TemperatureLogitsWarper(0.3)),
    "temperature 4": (lambda x: apply_temperature(x, 4.0), TemperatureLogitsWarper(4.0)),
    "top-k 1": (lambda x: keep_top_k(x, 1), TopKLogitsWarper(1)),
    "top-k 5": (lambda x: keep_top_k(x, 5), TopKLogitsWarper(5)),
    "top-k of more than there are": (lambda x: keep_top_k(x, 5000), TopKLogitsWarper(5000)),
    "top-p 0.01": (lambda x: keep_top_p(x, 0.01), TopPLogitsWarper(0.01)),
    "top-p 0.7": (lambda x: keep_top_p(x, 0.7), TopPLogitsWarper(0.7)),
    "top-p 0.9999": (lambda x: keep_top_p(x, 0.9999), TopPLogitsWarper(0.9999)),
    "min-p 0": (lambda x: keep_min_p(x, 0.0), MinPLogitsWarper(0.0)),
    "min-p 0.05": (lambda x: keep_min_p(x, 0.05), MinPLogitsWarper(0.05)),
    "min-p 1": (lambda x: keep_min_p(x, 1.0), MinPLogitsWarper(1.0)),
    "typical 0.1": (lambda x: keep_typical(x, 0.1), TypicalLogitsWarper(0.1)),
    "typical 0.7": (lambda x: keep_typical(x, 0.7), TypicalLogitsWarper(0.7)),
    "typical 0.9999": (lambda x: keep_typical(x, 0.9999), TypicalLogitsWarper(0.9999)),
    "repetition 1.3": (lambda x: apply_repetition_penalty(x, SEEN[:, : x.shape[1]], 1.3), RepetitionPenaltyLogitsProcessor(1.3)),
    "repetition 0.7": (lambda x: apply_repetition_penalty(x, SEEN[:, : x.shape[1]], 0.7), RepetitionPenaltyLogitsProcessor(0.7)),
}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize(("vocab", "spread", "banned"), [(7, 2.0, 0), (40, 1.0, 9), (1000, 0.3, 0), (1000, 4.0, 300)])
def test_rules_are_the_transformers_librarys(name: str, vocab: int, spread: float, banned: int) -> None:
    ours, theirs = PEERS[name]
    log_p = random_rows(vocab, spread=spread, banned=banned)
    before = log_p.clone()
    found, expected = ours(log_p), theirs(IDS, log_p.clone())
    assert torch.equal(log_p, before)
    assert torch.allclose(found.softmax(1), expected.softmax(1), **DOUBLE)
    assert torch.equal(found == NEVER, expected == NEVER)
    assert name.startswith("repetition") or torch.allclose(found.exp().sum(1), torch.ones(3, dtype=torch.float64), **DOUBLE)


def test_rules_apply_in_the_order_of_the_transformers_library() -> None:
    log_p, sizes = random_rows(1000, spread=1.0, banned=100), [3000]
    expected = log_p.clone()
    for warper in (
        TemperatureLogitsWarper(0.5),
        TopKLogitsWarper(60),
        TopPLogitsWarper(0.9),
        MinPLogitsWarper(0.1),
        TypicalLogitsWarper(0.6),
    ):
        expected = warper(IDS, expected)
        sizes.append(int((expected > NEVER).sum()))
    found = warp_logits(log_p, SamplingConfig(temperature=0.5, top_k=60, top_p=0.9, min_p=0.1, typical_p=0.6))
    assert torch.allclose(found.softmax(1), expected.softmax(1), **DOUBLE)
    assert sizes == sorted(set(sizes), reverse=True)  # each rule takes something away
    turned = keep_top_k(apply_temperature(keep_typical(keep_min_p(keep_top_p(log_p, 0.9), 0.1), 0.6), 0.5), 60)
    assert not torch.equal(turned > NEVER, found > NEVER)


weights = st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any)
"""Unnormalized probabilities, with frequent ties."""


@settings(max_examples=200)
@given(weights, st.integers(1, 10), st.integers(0, 200))
def test_survivors_are_those_of_exact_arithmetic(weights: list[int], k: int, number: int) -> None:
    total, largest = sum(weights), max(weights)
    p = [Fraction(w, total) for w in weights]
    log_p = log_of(*map(float, p))
    mass = Fraction(2 * (number % total) + 1, 2 * total)  # between two sums of probabilities, so that rounding cannot matter
    share = Fraction(2 * (number % largest) + 1, 2 * largest)

    def heavier(token: int) -> list[Fraction]:
        return [q for q in p if q > p[token]]

    real = [token for token, q in enumerate(p) if q]
    assert kept(keep_top_k(log_p, k)) == [token for token in real if len(heavier(token)) < k]
    assert kept(keep_top_p(log_p, float(mass))) == [token for token in real if sum(heavier(token)) < mass]
    assert kept(keep_top_p(log_p, 1.0)) == kept(keep_typical(log_p, 1.0)) == real
    assert kept(keep_min_p(log_p, float(share))) == [token for token in real if p[token] >= share * max(p)]


@settings(max_examples=200)
@given(weights, st.integers(0, 200))
def test_typical_tokens_are_nearest_the_entropy(weights: list[int], number: int) -> None:
    total = sum(weights)
    mass, p = (2 * (number % total) + 1) / (2 * total), [w / total for w in weights]
    entropy = -sum(q * math.log(q) for q in p if q)
    distance = {token: abs(-math.log(q) - entropy) for token, q in enumerate(p) if q}
    expected, reached = [], 0.0
    for _, group in itertools.groupby(sorted(distance, key=lambda token: (distance[token], token)), key=lambda token: distance[token]):
        if reached < mass:
            tokens = list(group)
            expected += tokens
            reached += sum(p[token] for token in tokens)
    assert kept(keep_typical(log_of(*p), mass)) == sorted(expected)


def test_rules_by_hand() -> None:
    log_p = log_of(0.5, 0.25, 0.0, 0.125, 0.125)
    assert apply_temperature(log_p, 0.5).exp().tolist() == [pytest.approx([16 / 22, 4 / 22, 0, 1 / 22, 1 / 22])]
    assert keep_top_k(log_p, 2).exp().tolist() == [pytest.approx([2 / 3, 1 / 3, 0, 0, 0])]
    assert kept(keep_top_k(log_p, 3)) == [0, 1, 3, 4]  # equals stay together
    assert keep_top_p(log_p, 0.6).exp().tolist() == [pytest.approx([2 / 3, 1 / 3, 0, 0, 0])]
    assert keep_min_p(log_p, 0.4).exp().tolist() == [pytest.approx([2 / 3, 1 / 3, 0, 0, 0])]
    assert keep_typical(log_p, 0.2).exp().tolist() == [pytest.approx([0, 1, 0, 0, 0])]  # H = 1.75 bits; surprises 1, 2, 3, 3
    seen, counts = torch.tensor([[True, False, True, True, False]]), torch.tensor([[2, 0, 1, 1, 0]])
    assert apply_repetition_penalty(log_p, seen, 2.0).exp().tolist() == [pytest.approx([0.25, 0.25, 0, 1 / 64, 0.125])]
    penalised = apply_count_penalties(log_p, counts, 0.3, 0.2)
    assert (penalised - log_p)[0, [0, 1, 3, 4]].tolist() == pytest.approx([-0.8, 0, -0.5, 0])
    assert penalised[0, 2] == NEVER


def test_a_mass_of_1_keeps_what_rounding_would_lose() -> None:
    log_p = torch.tensor([[-60.0, 0.0, NEVER, -50.0]], dtype=torch.float64).log_softmax(1)
    assert kept(keep_top_p(log_p, 1.0)) == kept(keep_typical(log_p, 1.0)) == [0, 1, 3]


rows = st.lists(st.one_of(st.floats(-50, 50), st.just(NEVER)), min_size=1, max_size=12).filter(lambda row: max(row) > NEVER)
shares = st.floats(0.001, 1.0)
limits_of_rules = st.fixed_dictionaries(
    {
        "temperature": st.one_of(st.floats(1e-3, 1e3), st.sampled_from([5e-324, 1e-300, 3e38])),
        "top_k": st.none() | st.integers(1, 12),
        "top_p": st.none() | shares,
        "min_p": st.none() | shares,
        "typical_p": st.none() | shares,
    }
)


@settings(max_examples=300)
@given(rows, limits_of_rules, st.floats(0, BELOW_ONE))
def test_something_survives_and_nothing_forbidden_does(row: list[float], rules: dict[str, Any], noise: float) -> None:
    log_p = torch.tensor([row], dtype=torch.float64).log_softmax(1)
    found = warp_logits(log_p, SamplingConfig(**rules))
    assert set(kept(found)) <= set(kept(log_p))
    assert found.exp().sum().item() == pytest.approx(1.0)
    assert sample_inverse_cdf(found, torch.tensor([noise], dtype=torch.float64)).item() in kept(found)


@settings(max_examples=200)
@given(rows, st.tuples(shares, shares), st.tuples(st.integers(1, 12), st.integers(1, 12)))
def test_survivors_are_nested(row: list[float], masses: tuple[float, float], ks: tuple[int, int]) -> None:
    log_p = torch.tensor([row], dtype=torch.float64).log_softmax(1)
    less, more = sorted(masses)
    assert set(kept(keep_top_k(log_p, min(ks)))) <= set(kept(keep_top_k(log_p, max(ks))))
    assert set(kept(keep_top_p(log_p, less))) <= set(kept(keep_top_p(log_p, more)))
    assert set(kept(keep_typical(log_p, less))) <= set(kept(keep_typical(log_p, more)))
    assert set(kept(keep_min_p(log_p, more))) <= set(kept(keep_min_p(log_p, less)))


@settings(max_examples=50)
@given(st.integers(0, 10**6), shares, st.sampled_from([1.0, 0.1]))
def test_a_nucleus_is_the_same_wherever_it_is_looked_for(seed: int, mass: float, spread: float) -> None:
    log_p = random_rows(700, seed, spread)
    for rule in (keep_top_p, keep_typical):
        found = rule(log_p, mass)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling, "INITIAL_CANDIDATES", 1000)
            assert torch.equal(rule(log_p, mass), found)
        assert torch.equal(torch.cat([rule(row[None], mass) for row in log_p]), found)


@settings(max_examples=200)
@given(weights, st.integers(0, 100), st.floats(0.001, 0.999))
def test_draws_invert_the_cumulative_distribution(weights: list[int], number: int, within: float) -> None:
    token = number % len(weights)
    assume(weights[token])
    noise = (sum(weights[:token]) + within * weights[token]) / sum(weights)
    log_p = log_of(*(w / sum(weights) for w in weights))
    assert sample_inverse_cdf(log_p, torch.tensor([noise], dtype=torch.float64)).item() == token


@settings(max_examples=200)
@given(st.lists(st.floats(-800, 0) | st.just(NEVER), min_size=1, max_size=20).filter(lambda row: max(row) > NEVER), st.integers(0, 21))
def test_what_has_no_probability_is_never_drawn(row: list[float], place: int) -> None:
    log_p = torch.tensor([[NEVER, *row, NEVER]], dtype=torch.float64).log_softmax(1)
    edge = log_p.exp().cumsum(1)[0, place % log_p.shape[1]].item()
    for noise in (0.0, 5e-324, math.nextafter(edge, 0), edge, math.nextafter(edge, 2), BELOW_ONE):
        assert sample_inverse_cdf(log_p, torch.tensor([min(noise, BELOW_ONE)], dtype=torch.float64)).item() in kept(log_p)


@pytest.mark.parametrize(
    ("p", "sums", "token"), [((0.5, 0.0, 0.5), (0.5, 0.5 + 2.0**-53, 1.0), 2), ((0.5, 0.5, 0.0), (0.5, BELOW_ONE, 1.0), 1)]
)
def test_nor_is_it_where_sums_are_rounded_in_another_order(
    p: tuple[float, ...], sums: tuple[float, ...], token: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tensor, "cumsum", lambda self, dim: torch.tensor([sums], dtype=torch.float64))  # as a parallel device may
    noise = 0.5 if token == 2 else BELOW_ONE
    assert sample_inverse_cdf(log_of(*p), torch.tensor([noise], dtype=torch.float64)).item() == token


def test_settings_are_checked() -> None:
    assert SamplingConfig.model_validate({"stop": ["\n", "Q:"], "top_p": "none", "temperature": 0}).stop == ("\n", "Q:")
    for wrong in (
        {"temperature": -0.1},
        {"temperature": math.inf},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"typical_p": 0.0},
        {"repetition_penalty": 0.0},
        {"frequency_penalty": math.nan},
        {"seed": -1},
        {"max_new_tokens": 0},
        {"min_new_tokens": 256},
        {"stop": ["a", ""]},
        {"stop": "a"},
        {"top": 3},
    ):
        with pytest.raises(ValidationError):
            SamplingConfig.model_validate(wrong)
