"""The retrieval baseline."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from transom.data.pairs.pairs import Pairs
from transom.data.pairs.retrieval_baseline import retrieval_baseline

TRAIN = Pairs(["the red house", "the red dog sleeps", "a cat", "a cat", "is the dog red?"], ["1", "2", "3", "4", "5"], "toy")


def test_the_most_similar_sentence_is_taken() -> None:
    assert retrieval_baseline(TRAIN, ["the red dog", "is the dog big?", "the old house", "The RED house"]) == ["2", "5", "1", "1"]


def test_of_equals_the_first_is_taken_and_of_strangers_too() -> None:
    assert retrieval_baseline(TRAIN, ["a cat", "no word known", ""]) == ["3", "1", "1"]


def test_a_repeated_word_is_matched_twice() -> None:
    train = Pairs(["the dog and a cat", "the dog and the cat"], ["1", "2"], "toy")
    assert retrieval_baseline(train, ["the dog and the bird"]) == ["2"]


words = st.lists(st.sampled_from("abcd"), min_size=1, max_size=5).map(" ".join)


@given(st.lists(words, min_size=1, max_size=8), words)
def test_agrees_with_trying_every_sentence(sources: list[str], sentence: str) -> None:
    def dice(other: str) -> float:
        a, b = Counter(sentence.split()), Counter(other.split())
        return 2 * (a & b).total() / (a.total() + b.total())

    train = Pairs(sources, [str(i) for i in range(len(sources))], "toy")
    best = max(range(len(sources)), key=lambda i: dice(sources[i]))
    assert retrieval_baseline(train, [sentence]) == [str(best)]
