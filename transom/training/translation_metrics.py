"""Translation metrics: BLEU, chrF, exact match, and a significance test between two systems."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transom.errors import ConfigError, DataError
from transom.training.significance import PairedComparison, compare_resampled

LENGTH_BUCKETS = (5, 10, 15, 20, 30, 50)
"""Upper bounds, in words of the reference, of the buckets for BLEU by length."""


MOSES_LANGUAGES = (
    *("as", "bn", "ca", "cs", "de", "el", "en", "es", "et", "fi", "fr", "ga", "gu", "hi", "hu", "is", "it", "ja", "kn", "ko", "lt", "lv"),
    *("ml", "mni", "mr", "nl", "or", "pa", "pl", "pt", "ro", "ru", "sk", "sl", "sv", "ta", "tdt", "te", "yue", "zh"),
)
"""Languages for which the Moses scripts have rules; for any other language they silently use the rules of English."""


class MetricScore(NamedTuple):
    """A score, and the settings with which sacreBLEU computed it.

    Attributes:
        value: the score, from 0 to 100.
        signature: sacreBLEU's signature, a string of the settings.
    """

    value: float
    signature: str


class ReferenceLengthBucket(NamedTuple):
    """BLEU of the sentences whose reference has ``min_words`` to ``max_words`` words; ``max_words`` None means no upper bound."""

    min_words: int
    max_words: int | None
    n_sentences: int
    bleu: float


@dataclass(frozen=True)
class BootstrapComparison(PairedComparison):
    """BLEU of two systems on the same sentences, and the significance of the difference.

    Attributes:
        signature: sacreBLEU's signature, a string of the settings of BLEU.
    """

    signature: str


def bleu(translations: Sequence[str], references: Sequence[str], lowercase: bool = False) -> MetricScore:
    """Compute corpus BLEU (Papineni et al. 2002) by sacreBLEU (Post 2018) on plain, detokenized text.

    Args:
        translations: one translation per sentence.
        references: one reference per translation.
        lowercase: ignore case.

    Raises:
        DataError: the lists differ in length, or are empty.
    """
    _check_lengths(translations, references)
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(lowercase=lowercase)
    return MetricScore(metric.corpus_score(translations, [references]).score, metric.get_signature().format())


def chrf(translations: Sequence[str], references: Sequence[str], lowercase: bool = False) -> MetricScore:
    """Compute corpus chrF2 (Popovic 2015) by sacreBLEU; arguments as in ``bleu``."""
    _check_lengths(translations, references)
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF(lowercase=lowercase)
    return MetricScore(metric.corpus_score(translations, [references]).score, metric.get_signature().format())


def corpus_scores(translations: Sequence[str], references: Sequence[str], lowercase: bool = False) -> dict[str, float]:
    """Return the scores of ``bleu`` and ``chrf`` under these names, from 0 to 100."""
    return {score.__name__: score(translations, references, lowercase).value for score in (bleu, chrf)}


def exact_match(translations: Sequence[str], references: Sequence[str]) -> float:
    """Return the fraction of translations that equal their reference, ignoring surrounding white space."""
    _check_lengths(translations, references)
    return sum(map(is_match, translations, references)) / len(references)


def is_match(text: str, reference: str) -> bool:
    """Return whether a text equals its reference, ignoring surrounding white space."""
    return text.strip() == reference.strip()


def wu2021_bleu(translations: Sequence[str], references: Sequence[str], language: str) -> MetricScore:
    """Compute tokenized lower-cased BLEU as Wu et al. (2021) and others report it on Multi30k.

    Translations and references are lower-cased, punctuation-normalized and tokenized by the Moses scripts, in this order (the data set's
    ``lc.norm.tok``). They are compared without further tokenization or smoothing, as ``multi-bleu.perl`` does. The German references of
    test_2016 then have 12,103 tokens. The score is not comparable with that of ``bleu``.

    Args:
        translations: plain text, one translation per sentence.
        references: plain text, one reference per translation.
        language: language of translations and references, such as "de".

    Raises:
        ConfigError: the language is none of ``MOSES_LANGUAGES``, or sacremoses is not installed.
        DataError: the lists differ in length, or are empty.
    """
    _check_lengths(translations, references)
    prepare = moses_normalizer(language)
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    score = metric.corpus_score([prepare(line) for line in translations], [[prepare(line) for line in references]])
    return MetricScore(score.score, f"{metric.get_signature().format()}|prep:moses-{language}-lc.norm.tok")


def moses_normalizer(language: str) -> Callable[[str], str]:
    """Return a function that lower-cases, punctuation-normalizes and tokenizes a line by the Moses scripts (``lc.norm.tok``).

    Raises:
        ConfigError: the language is none of ``MOSES_LANGUAGES``, or sacremoses is not installed.
    """
    if language not in MOSES_LANGUAGES:
        raise ConfigError(
            f"tokenized BLEU (--tokenized): expected a language among {', '.join(MOSES_LANGUAGES)}, found {language!r:.50};"
            " give one of these, or omit --tokenized"
        )
    if importlib.util.find_spec("sacremoses") is None:
        raise ConfigError("tokenized BLEU (--tokenized): expected the package sacremoses, found none; install transom[bench]")
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalize, tokenize = MosesPunctNormalizer(lang=language).normalize, MosesTokenizer(lang=language).tokenize
    return lambda line: str(tokenize(normalize(line.lower()), return_str=True))


def bleu_by_length(translations: Sequence[str], references: Sequence[str], lowercase: bool = False) -> list[ReferenceLengthBucket]:
    """Compute BLEU per bucket of reference length in words; empty buckets are omitted."""
    _check_lengths(translations, references)
    buckets_of_lines = np.searchsorted(LENGTH_BUCKETS, [len(line.split()) for line in references])
    buckets = []
    for bucket in np.unique(buckets_of_lines).tolist():
        rows = np.flatnonzero(buckets_of_lines == bucket).tolist()
        score = bleu([translations[i] for i in rows], [references[i] for i in rows], lowercase).value
        min_words = LENGTH_BUCKETS[bucket - 1] + 1 if bucket else 0
        buckets.append(ReferenceLengthBucket(min_words, LENGTH_BUCKETS[bucket] if bucket < len(LENGTH_BUCKETS) else None, len(rows), score))
    return buckets


def paired_bootstrap(
    a: Sequence[str], b: Sequence[str], references: Sequence[str], lowercase: bool = False, n_samples: int = 1000, seed: int = 12345
) -> BootstrapComparison:
    """Compare two systems by paired bootstrap resampling (Koehn 2004).

    Test sets of the same size are drawn with replacement from the sentences, the same for both systems. ``compare_resampled`` defines
    intervals and p-value. sacreBLEU's paired test with the same seed draws the same test sets, but reports a one-sided p-value, about half
    of the two-sided one.

    Args:
        a: translations of the first system.
        b: translations of the same sentences by the second system.
        references: one reference per sentence.
        lowercase: ignore case.
        n_samples: number of resampled test sets.
        seed: random seed of the resampling.

    Raises:
        DataError: the lists differ in length, or are empty.
    """
    _check_lengths(a, references)
    _check_lengths(b, references)
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(lowercase=lowercase, effective_order=True)
    draws = np.random.default_rng(seed).choice(len(references), size=(n_samples, len(references)), replace=True)
    statistics = [_bleu_statistics(metric, system, references) for system in (a, b)]
    score_a, score_b = (_bleu_from_statistics(counts.sum(0)) for counts in statistics)
    resampled_a, resampled_b = (np.array([_bleu_from_statistics(counts[draw].sum(0)) for draw in draws]) for counts in statistics)
    compared = compare_resampled(score_a, score_b, resampled_a, resampled_b, seed)
    return BootstrapComparison(**vars(compared), signature=bleu(a, references, lowercase).signature)


def _bleu_statistics(metric: Any, translations: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """Return, per sentence, the counts from which BLEU is computed: both lengths, then matching n-grams and all n-grams per order."""
    scores = [metric.sentence_score(t, [r]) for t, r in zip(translations, references, strict=True)]
    return np.array([[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores])


def _bleu_from_statistics(counts: NDArray[np.int64]) -> float:
    sys_len, ref_len, *ngrams = counts.tolist()
    half = len(ngrams) // 2
    from sacrebleu.metrics.bleu import BLEU

    return float(BLEU.compute_bleu(ngrams[:half], ngrams[half:], sys_len, ref_len, smooth_method="exp").score)


def _check_lengths(translations: Sequence[str], references: Sequence[str]) -> None:
    if len(translations) != len(references) or not references:
        raise DataError(f"expected as many translations as references (at least one), found {len(translations)} and {len(references)}")
