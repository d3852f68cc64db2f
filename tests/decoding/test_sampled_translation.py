"""Sampled translations: their distribution, their log-probabilities, seeds, and different samples of one text."""

import math
from collections import Counter

import pytest

from tests.decoding.models import Uncached
from tests.decoding.tables import EOS
from tests.decoding.test_translator import log_p_of, translator
from transom.config.decoding import SamplingConfig
from transom.data.tokenizer.special_tokens import PAD, SOS
from transom.decoding.inference import ignore_progress
from transom.decoding.predictors.translator import Translator, _sample_id
from transom.decoding.search.sampling import MultinomialSampling
from transom.errors import ConfigError

TEXTS = ["ab", "", "abcdefgh", "h", "cd ab"]


def first_tokens(t: Translator, text: str, **rules: float) -> dict[str, float]:
    """Return the exact distribution of the first token, as text; "" is the end token."""
    row = Uncached(t.model).log_p((*t.tokenizers.source.encode(text), EOS), ())
    p = {token: math.exp(x / rules.get("temperature", 1.0)) for token, x in enumerate(row) if token not in (PAD, SOS)}
    kept = sorted(p, key=lambda token: -p[token])[: int(rules.get("top_k", len(p)))]
    total = sum(p[token] for token in kept)
    found = Counter[str]()
    for token in kept:
        found["" if token == EOS else t.tokenizers.target.decode([token])] += p[token] / total  # type: ignore[assignment]
    return dict(found)


@pytest.mark.parametrize("rules", [{}, {"temperature": 0.7}, {"temperature": 1.5, "top_k": 5}])
def test_tokens_are_drawn_with_the_probability_of_the_softmax(rules: dict[str, float]) -> None:
    t, n, text = translator(letters="abcdefgh"), 4000, "abc"
    rows, setting = [t.tokenizers.source.encode(text)] * n, SamplingConfig(seed=11, **rules)  # type: ignore[arg-type]
    decoding = t.decoding.model_copy(update={"max_length": 2})

    def strategy(indices: list[int]) -> MultinomialSampling:
        return MultinomialSampling(EOS, setting, tuple(_sample_id(text, 0, k) for k in indices))

    drawn = t._search_all(rows, decoding, 1, 10**6, ignore_progress, strategy)
    counts = Counter(t.tokenizers.target.decode(hypothesis.tokens) for [hypothesis] in drawn)
    seed_11 = [t.n_best([text], 1, sample=True, seed=11, max_length=2, **rules)[0][0].text]  # type: ignore[arg-type]
    assert seed_11 == [t.tokenizers.target.decode(drawn[0][0].tokens)]

    def statistic(exact: dict[str, float]) -> tuple[float, float]:
        """Return Pearson's chi-squared statistic and its critical value for p = 1e-4 (Wilson & Hilferty 1931)."""
        cells = [(counts[each], n * p) for each, p in exact.items() if n * p >= 5]
        rest = (n - sum(seen for seen, _ in cells), n - sum(expected for _, expected in cells))
        cells += [rest] if rest[1] >= 5 else []
        k = len(cells) - 1
        return sum((seen - e) ** 2 / e for seen, e in cells), k * (1 - 2 / (9 * k) + 3.719 * math.sqrt(2 / (9 * k))) ** 3

    exact = first_tokens(t, text, **rules)
    found, critical = statistic(exact)
    assert set(counts) <= set(exact) and sum(exact.values()) == pytest.approx(1.0)
    assert found < critical
    wrong, critical = statistic(first_tokens(t, text, **{**rules, "temperature": 2.5 * rules.get("temperature", 1.0)}))
    assert wrong > critical, "the test would not notice another distribution"


def test_a_low_temperature_and_temperature_0_are_greedy() -> None:
    t = translator()
    greedy = t.translate(TEXTS, beam_size=1)
    assert t.translate(TEXTS, sample=True, temperature=0.0) == t.translate(TEXTS, sample=True, temperature=1e-6, seed=5) == greedy
    assert t.translate(TEXTS, sample=True, top_k=1, temperature=3.0) == greedy
    assert [len(of_text) for of_text in t.n_best(TEXTS, 4, sample=True, temperature=0.0)] == [1] * len(TEXTS)


@pytest.mark.parametrize("batch_tokens", [9, 1024])
def test_a_seed_gives_the_same_samples_in_every_batch(batch_tokens: int) -> None:
    t = translator()
    alone = [t.n_best([text], 2, sample=True, seed=3)[0] for text in TEXTS]
    together = t.n_best(TEXTS[::-1], 2, sample=True, seed=3, batch_tokens=batch_tokens)
    assert [[each.text for each in of_text] for of_text in together[::-1]] == [[each.text for each in of_text] for of_text in alone]
    assert [len(of_text) for of_text in alone] == [2, 1, 2, 2, 2], "a blank text has one empty translation"


def test_seeds_and_texts_differ() -> None:
    t = translator()
    assert len({t.translate(["abc"], sample=True, seed=seed)[0] for seed in range(5)}) > 2
    assert len(set(t.translate(["a" * n for n in range(2, 9)], sample=True))) > 2


def test_n_samples_differ_and_come_with_the_models_log_probabilities() -> None:
    t = translator()
    symbols = t.tokenizers.target.symbols(range(t.tokenizers.target.vocab_size))
    for text, found in zip(["abc", "dead beef"], t.n_best(["abc", "dead beef"], 6, sample=True, temperature=0.5, top_p=0.9), strict=True):
        assert len({each.text for each in found}) == len(found) == 6
        for each in found:
            assert each.score == each.log_p and "\n" not in each.text
            target = [symbols.index(symbol) for symbol in each.tokens]
            exact = log_p_of(t.model, (*t.tokenizers.source.encode(text), EOS), tuple(target))
            assert each.log_p == pytest.approx(exact, abs=1e-9), "log p is before temperature and top-p"


def test_more_samples_continue_fewer() -> None:
    t = translator()
    one, few, many = ([each.text for each in t.n_best(["abc", "h"], n, sample=True, max_length=3)[0]] for n in (1, 2, 7))
    assert many[:2] == few and few[:1] == one and len(many) == 7


def test_a_text_with_few_possible_translations_has_fewer_samples() -> None:
    t = translator()
    [found] = t.n_best(["abc"], 4, sample=True, max_length=2, top_k=2)
    assert 1 <= len(found) <= 2


def test_pieces_of_a_long_text_have_random_numbers_of_their_own() -> None:
    t = translator()
    part = "abc def gab."
    [found] = t.n_best([" ".join([part] * 4)], 2, sample=True)
    assert found[0].pieces > 1 and len(found) == 2
    strategies = [t.translate([part], sample=True, seed=seed)[0] for seed in range(4)]
    assert len(set(strategies)) > 1, "the model writes one text only: the test shows nothing"
    assert found[0].text != " ".join([t.translate([part], sample=True)[0]] * 4)


def test_a_broken_model_still_gives_a_line_for_each() -> None:
    t = translator()
    t.model.unembedding.weight.data.fill_(math.nan)
    assert len(t.translate(["abc", "", "h"], sample=True)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sample": True, "beam_size": 3}, "decoding: expected beam_size with beam search, found it with sample=True; leave it out"),
        ({"sample": True, "length_penalty": 0.5}, "decoding: expected length_penalty with beam search, found it with sample=True"),
        ({"temperature": 0.5}, "decoding: expected temperature with sample=True, found it with beam search; leave it out"),
        ({"seed": 0}, "decoding: expected seed with sample=True"),
        ({"sample": True, "temperature": -1.0}, "decoding: temperature: expected .*0, found -1.0"),
        ({"sample": True, "top_p": 0.0}, "decoding: top_p"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        translator().n_best(["a"], 2, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected n_best of at least 1, found 0"):
        translator().n_best(["a"], 0, sample=True)
