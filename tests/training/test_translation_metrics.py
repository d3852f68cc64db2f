"""Scores against sacreBLEU's own numbers, hand-made counts and its paired test."""

import math

import numpy as np
import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest
from sacremoses.corpus import NonbreakingPrefixes

from transom.errors import ConfigError, DataError
from transom.training import translation_metrics
from transom.training.translation_metrics import (
    ReferenceLengthBucket,
    bleu,
    bleu_by_length,
    chrf,
    corpus_scores,
    exact_match,
    moses_normalizer,
    paired_bootstrap,
    wu2021_bleu,
)

REFERENCES = [
    "Zwei Hunde spielen im Schnee.",
    "Ein Mann schläft auf einer Bank im Park.",
    "Die Frau liest ein Buch, während das Kind spielt.",
    "Mehrere Menschen warten an einer Haltestelle auf den Bus.",
]
GOOD = [
    "Zwei Hunde spielen im Schnee.",
    "Ein Mann schläft auf einer Bank.",
    "Die frau liest ein Buch, während ein Kind spielt.",
    "Mehrere Leute warten an einer Haltestelle auf den Bus.",
]
POOR = [
    "Hunde im Schnee.",
    "Ein Mann auf der Bank im Park.",
    "Eine Frau liest ein Buch und das Kind spielt.",
    "Menschen warten auf den Bus.",
]


def test_bleu_and_chrf_are_sacrebleus_with_its_signature() -> None:
    value, signature = bleu(GOOD, REFERENCES)
    assert value == pytest.approx(sacrebleu.corpus_bleu(GOOD, [REFERENCES]).score)
    assert "case:mixed" in signature
    assert "tok:13a" in signature
    lowered, lowered_signature = bleu(GOOD, REFERENCES, lowercase=True)
    assert lowered > value
    assert "case:lc" in lowered_signature
    assert chrf(GOOD, REFERENCES).value == pytest.approx(sacrebleu.corpus_chrf(GOOD, [REFERENCES]).score)
    assert "nc:6" in chrf(GOOD, REFERENCES).signature
    assert corpus_scores(GOOD, REFERENCES) == {"bleu": value, "chrf": chrf(GOOD, REFERENCES).value}


def test_bleu_by_hand() -> None:
    precisions = [5 / 6, 3 / 5, 1 / 4]
    value = bleu(["the cat sat on a mat"] * 2, ["the cat sat on the mat"] * 2).value
    expected = 100 * math.exp((math.log(precisions[0]) + math.log(precisions[1]) + math.log(2 / 4) + math.log(1 / 3)) / 4)
    assert value == pytest.approx(expected)


def test_equal_text_scores_everything_and_foreign_text_next_to_nothing() -> None:
    assert bleu(REFERENCES, REFERENCES).value == pytest.approx(100.0)
    assert bleu(["x y z w"] * 4, REFERENCES).value < 3.0
    assert exact_match(GOOD, REFERENCES) == 0.25
    assert exact_match([f" {line}\n" for line in REFERENCES], REFERENCES) == 1.0


@pytest.mark.parametrize(
    "call", [bleu, chrf, exact_match, bleu_by_length, lambda t, r: wu2021_bleu(t, r, "de"), lambda t, r: paired_bootstrap(t, t, r)]
)
@pytest.mark.parametrize(("n", "m"), [(3, 4), (4, 3), (0, 0)])
def test_unequal_numbers_are_refused(call: object, n: int, m: int) -> None:
    with pytest.raises(DataError, match=f"found {n} and {m}"):
        call(GOOD[:n], REFERENCES[:m])  # type: ignore[operator]


def test_wu2021_lower_cases_normalises_and_tokenizes_by_moses() -> None:
    prepare = moses_normalizer("de")
    assert prepare("Er sagte: „Komm, Anna-Lena!“ …") == "er sagte : &quot; komm , anna-lena ! &quot; ..."
    shouted = [line.upper() for line in REFERENCES]
    value, signature = wu2021_bleu(shouted, REFERENCES, "de")
    assert value == pytest.approx(100.0)
    assert signature.endswith("|prep:moses-de-lc.norm.tok")
    assert "tok:none" in signature
    hand = BLEU(tokenize="none", force=True).corpus_score([prepare(x) for x in GOOD], [[prepare(x) for x in REFERENCES]]).score
    assert wu2021_bleu(GOOD, REFERENCES, "de").value == pytest.approx(hand)


def test_wu2021_does_not_smooth() -> None:
    assert wu2021_bleu(["ein hund"], ["eine katze"], "de").value == 0.0


@pytest.mark.parametrize("language", ["xx", "DE", "german", "", "13a", "d" * 1000])
def test_wu2021_refuses_a_language_without_rules(language: str) -> None:
    with pytest.raises(ConfigError, match=r"expected a language among as, bn, ca, .* yue, zh, found '"):
        wu2021_bleu(GOOD, REFERENCES, language)


def test_the_languages_with_rules_are_those_of_the_scripts() -> None:
    named = set(NonbreakingPrefixes().available_langs.values())
    assert set(translation_metrics.MOSES_LANGUAGES) == named | {"ja", "ko"}, "these two have no prefixes, but rules for their characters"


def test_without_sacremoses_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation_metrics.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"sacremoses, found none; install transom\[bench\]"):
        wu2021_bleu(GOOD, REFERENCES, "de")


def test_bleu_by_length_covers_every_sentence_once() -> None:
    references = [" ".join(["wort"] * n) for n in (1, 5, 6, 10, 11, 51, 200)]
    buckets = bleu_by_length(references, references)
    assert [(b.min_words, b.max_words, b.n_sentences) for b in buckets] == [(0, 5, 2), (6, 10, 2), (11, 15, 1), (51, None, 2)]
    mixed = bleu_by_length(GOOD, REFERENCES)
    assert mixed[0] == ReferenceLengthBucket(0, 5, 1, bleu(GOOD[:1], REFERENCES[:1]).value)
    assert mixed[1].bleu == bleu(GOOD[1:], REFERENCES[1:]).value


def corpus(n: int, error_rate: float, seed: int) -> list[str]:
    """Corrupt words of a made-up corpus."""
    rng = np.random.default_rng(seed)
    return [" ".join("x" if rng.random() < error_rate else f"w{(i * k) % 17}" for k in range(3, 12)) for i in range(n)]


@pytest.mark.parametrize("rates", [(0.10, 0.12), (0.10, 0.2), (0.3, 0.3)])
def test_comparison_draws_sacrebleus_paired_samples(rates: tuple[float, float]) -> None:
    references, a, b = corpus(60, 0.0, 0), corpus(60, rates[0], 1), corpus(60, rates[1], 2)
    ours = paired_bootstrap(a, b, references, n_samples=200)
    _, theirs = PairedTest([("a", a), ("b", b)], {"BLEU": BLEU()}, [references], "bs", n_samples=200)()
    result_a, result_b = theirs["BLEU"]
    assert (ours.a, ours.b) == (pytest.approx(result_a.score), pytest.approx(result_b.score))
    assert ours.p_value >= result_b.p_value
    assert (ours.b_interval[1] - ours.b_interval[0]) / 2 == pytest.approx(result_b.ci, abs=1e-3)
    assert (ours.a_interval[1] - ours.a_interval[0]) / 2 == pytest.approx(result_a.ci, abs=1e-3)


def test_comparison_tells_luck_from_skill() -> None:
    references, better, worse = corpus(100, 0.0, 0), corpus(100, 0.1, 1), corpus(100, 0.3, 2)
    clear = paired_bootstrap(worse, better, references, n_samples=200)
    assert clear.difference == pytest.approx(bleu(better, references).value - bleu(worse, references).value)
    assert clear.p_value < 0.01
    assert 0 < clear.difference_interval[0] < clear.difference < clear.difference_interval[1]
    same = paired_bootstrap(better, better, references, n_samples=200)
    assert (same.difference, same.difference_interval) == (0.0, (0.0, 0.0))
    assert paired_bootstrap(GOOD, POOR, REFERENCES, n_samples=50, seed=1) == paired_bootstrap(GOOD, POOR, REFERENCES, n_samples=50, seed=1)
    assert paired_bootstrap(GOOD, POOR, REFERENCES, n_samples=50, seed=1) != paired_bootstrap(GOOD, POOR, REFERENCES, n_samples=50, seed=2)


def test_equal_systems_are_not_told_apart() -> None:
    references = corpus(50, 0.0, 0)
    assert paired_bootstrap(references, references, references, n_samples=50).p_value == 1.0


def test_p_value_is_right_about_equally_good_systems() -> None:
    references = corpus(40, 0.0, 0)
    p_values = [
        paired_bootstrap(corpus(40, 0.2, 2 * i), corpus(40, 0.2, 2 * i + 1), references, n_samples=100).p_value for i in range(1, 61)
    ]
    assert sum(p <= 0.1 for p in p_values) <= 14
    assert 0.3 < float(np.mean(p_values)) < 0.7


def test_comparison_may_ignore_case() -> None:
    shouted = [line.upper() for line in REFERENCES]
    assert paired_bootstrap(shouted, REFERENCES, REFERENCES, lowercase=True, n_samples=20).difference == pytest.approx(0.0)
    assert "case:lc" in paired_bootstrap(shouted, REFERENCES, REFERENCES, lowercase=True, n_samples=20).signature
