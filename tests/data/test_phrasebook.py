"""The phrasebook's splits: sizes, held-out combinations, one translation per sentence."""

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from itertools import islice, pairwise
from pathlib import Path

import pytest

from transom.config.data import PhrasebookConfig
from transom.data.pairs.pairs import Pairs
from transom.data.pairs.retrieval_baseline import retrieval_baseline
from transom.data.synthetic.phrasebook.generate import MAX_WORDS, CombinationSplitter, generate_phrasebook, sample_sentences
from transom.data.synthetic.phrasebook.lexicon import lexicon

ROOT = Path(__file__).parents[2]
WORD = re.compile(r"\w+")
MISWRITTEN = re.compile(r"\b(a|de) el\b|\b(la|una) (agua|águila|hacha|aula)\b|\by (Irene|i|hi)|\bno no\b| [,?]|\(")
BEFORE_VERB = {"will", "can", "cannot", "must", "do", "does", "did", "not", "always", "never", "often", "sometimes"}
WANTING = {"wants", "want", "to"}
BEFORE_ADJECTIVE = {"is", "are", "was", "were", "will", "be", "not", "very", "too", "so"}
SPLITS = """
import json, sys
from transom.config.data import PhrasebookConfig
from transom.data.synthetic.phrasebook.generate import generate_phrasebook
splits = generate_phrasebook(PhrasebookConfig(seed=int(sys.argv[1])))
json.dump([[pairs.source, pairs.target] for pairs in (splits.train, splits.valid, splits.test)], sys.stdout)
"""


@cache
def parts(seed: int = 1) -> tuple[Pairs, Pairs, Pairs]:
    """Generate the default sizes in a separate process, without run-time type checks and with another hash seed."""
    command = [sys.executable, "-c", SPLITS, str(seed)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, encoding="utf-8")
    train, valid, test = (Pairs(source, target, "phrasebook") for source, target in json.loads(run.stdout))
    return train, valid, test


@cache
def vocabulary() -> tuple[dict[str, str], dict[str, str], dict[str, str], list[str]]:
    """Return the lemma of each form of a noun or verb, the adjectives and the greetings."""
    words = lexicon()
    nouns = {form: noun.lemma for group in (*words.nouns.values(), words.names) for noun in group for form in noun.english}
    verbs = {form: verb.lemma for verb in words.verbs.values() for form in (verb.lemma, verb.third, verb.past)}
    adjectives = {adjective.lemma: adjective.lemma for group in words.adjectives.values() for adjective in group}
    return nouns, verbs, adjectives, [greeting for greeting, _ in words.phrases["greetings"]]


def surface_combinations(sentence: str) -> Iterator[str]:
    """Return the combinations in an English sentence from its words alone, without the grammar."""
    lemmas, verbs, adjectives, greetings = vocabulary()
    words = re.findall(r"[\w-]+|[^\w\s]", sentence)
    for first, second in pairwise(words):
        if first in adjectives and second in lemmas:
            yield f"{first} {lemmas[second]}"
    for place, word in enumerate(words):
        if word not in lemmas:
            continue
        joined = words[place + 1 : place + 2] == ["and"]
        end = next((i for i in range(place + 2, len(words)) if words[i] in lemmas), place) if joined else place
        for skipped, kind in ((BEFORE_VERB, verbs), (BEFORE_VERB | WANTING, verbs), (BEFORE_ADJECTIVE, adjectives)):
            following = next((other for other in words[end + 1 :] if other not in skipped), "")
            if following in kind:
                yield f"{kind[following]} {lemmas[word]}"
    for greeting in greetings:
        match = re.match(rf"{greeting} (\w+)(?: and (\w+))?", sentence)
        yield from (f"{greeting} {lemmas[word]}" for word in (match.groups() if match else ()) if word in lemmas)


def test_sizes_are_those_of_the_config_and_no_sentence_comes_twice() -> None:
    train, valid, test = parts()
    assert (len(train.source), len(valid.source), len(test.source)) == (50000, 1000, 2000)
    everything = train.source + valid.source + test.source
    assert len(set(everything)) == len(everything)


def test_hello_world_is_a_test_pair_of_which_training_holds_both_words_but_not_the_pair() -> None:
    train, valid, test = parts()
    assert (test.source[0], test.target[0]) == ("hello world", "hola mundo")
    assert not any("hello world" in source for source in train.source + valid.source)
    for word, translation in (("hello", "hola"), ("world", "mundo")):
        seen = [target for source, target in zip(train.source, train.target, strict=True) if word in WORD.findall(source)]
        assert len(seen) > 100
        assert all(translation in target for target in seen)


def test_each_test_sentence_has_a_combination_that_training_lacks() -> None:
    train, valid, test = parts()
    trained = {combination for pairs in (train, valid) for source in pairs.source for combination in surface_combinations(source)}
    splitter = CombinationSplitter(seed=1)
    assert len(trained) > 3000
    assert all(splitter.split(combination) != "test" for combination in trained)
    assert all(set(surface_combinations(source)) - trained for source in test.source)


def test_the_grammar_tells_every_combination_that_the_surface_shows() -> None:
    for phrase in islice(sample_sentences(seed=5), 2000):
        missed = set(surface_combinations(phrase.english)) - set(phrase.combinations)
        assert not missed, phrase


def test_validation_and_test_hold_out_combinations_of_their_own() -> None:
    splitter = CombinationSplitter(seed=1)
    shares = Counter(splitter.split(f"{adjective} {noun}") for adjective in range(100) for noun in range(100))
    assert 900 < shares["test"] < 1100
    assert 430 < shares["valid"] < 570
    for phrase in islice(sample_sentences(seed=1), 2000):
        held = {splitter.split(combination) for combination in phrase.combinations} - {"train"}
        assert splitter.split_of(phrase) == (None if len(held) == 2 else held.pop() if held else "train")


def test_every_word_of_validation_and_test_is_often_in_training() -> None:
    train, valid, test = parts()
    for side in ("source", "target"):
        counts = Counter(word for sentence in getattr(train, side) for word in WORD.findall(sentence))
        assert len(counts) >= 600
        rare = {word for pairs in (valid, test) for sentence in getattr(pairs, side) for word in WORD.findall(sentence) if counts[word] < 8}
        assert not rare


@pytest.mark.long
def test_an_english_sentence_has_one_translation() -> None:
    translations: defaultdict[str, set[str]] = defaultdict(set)
    for seed in (1, 2):
        for pairs in parts(seed):
            for source, target in zip(pairs.source, pairs.target, strict=True):
                translations[source].add(target)
    assert len(translations) < 2 * 53000 - 2000
    assert all(len(found) == 1 for found in translations.values())


def test_sentences_are_short_and_well_written() -> None:
    for pairs in parts():
        for source, target in zip(pairs.source, pairs.target, strict=True):
            for side in (source, target):
                assert len(side.split(" ")) <= MAX_WORDS
                assert side == " ".join(side.split())
            assert source.endswith("?") == target.endswith("?") == ("¿" in target)
            assert not MISWRITTEN.search(target), target


@pytest.mark.long
def test_the_pairs_are_a_function_of_the_config_and_more_of_one_part_change_no_other() -> None:
    small = generate_phrasebook(PhrasebookConfig(n_train=500, n_valid=20, n_test=40))
    train, valid, test = parts()
    assert small.test is not None
    for few, many in ((small.train, train), (small.valid, valid), (small.test, test)):
        assert few.source == many.source[: len(few.source)]
        assert few.target == many.target[: len(few.target)]
    assert parts(seed=2)[2].source[1:] != test.source[1:]


def test_the_pairs_are_those_of_other_machines() -> None:
    """Fail if the grammar or lexicon changes, because published results on the phrasebook must then be measured again."""
    digest = sha256()
    for pairs in parts():
        for source, target in zip(pairs.source, pairs.target, strict=True):
            digest.update(f"{source}\t{target}\n".encode())
    assert digest.hexdigest()[:16] == "00575f04c6cd9e9f"


def test_the_nearest_training_sentence_is_hardly_ever_the_translation() -> None:
    train, _, test = parts()
    guesses = retrieval_baseline(train, test.source)
    exact = sum(guess == target for guess, target in zip(guesses, test.target, strict=True))
    assert exact < 0.05 * len(guesses)
