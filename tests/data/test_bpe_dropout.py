"""BPE-dropout: the library's merges without dropout, the paper's distribution with it, and random numbers that depend only on the key."""

import math
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.test_bpe import BPE, SENTENCES, texts
from transom.data.tokenizer.bpe_dropout import MergeDropout, _kept_run_lengths

AB = {(0, 1): (0, 3), (1, 2): (1, 4), (3, 2): (2, 5), (0, 4): (3, 5)}
"""a=0 b=1 c=2, ab=3 bc=4 abc=5."""


def toy() -> MergeDropout:
    return MergeDropout(AB, lambda text: [text], lambda word: ["abc".index(letter) for letter in word.strip()])


@given(texts)
def test_without_dropout_it_is_the_library(text: str) -> None:
    assert BPE.encode_with_dropout([text], 0.0, (1,), [0]) == BPE.encode_batch([text])


@given(st.text("ab dogsne.  \t\u00a0", max_size=40))
def test_without_dropout_it_is_the_library_on_many_merges_and_spaces(text: str) -> None:
    assert BPE.encode_with_dropout([text], 0.0, (1,), [0]) == BPE.encode_batch([text])


@given(texts, st.floats(0.01, 0.99), st.integers(0, 5))
def test_every_segmentation_is_of_the_text(text: str, p: float, sample: int) -> None:
    (numbers,) = BPE.encode_with_dropout([text], p, (1, 2), [sample])
    assert BPE.decode(numbers) == text
    assert len(numbers) >= len(BPE.encode_batch([text])[0])


@given(st.floats(0.01, 0.9), st.integers(0, 3), st.integers(0, 3))
def test_draws_depend_on_the_key_alone(p: float, seed: int, epoch: int) -> None:
    order = list(range(len(SENTENCES)))
    whole = BPE.encode_with_dropout(SENTENCES, p, (seed, epoch), order)
    assert whole == [BPE.encode_with_dropout([SENTENCES[i]], p, (seed, epoch), [i])[0] for i in order[::-1]][::-1]


def test_keys_differ() -> None:
    text = [" ".join(SENTENCES)]
    drawn = {str(BPE.encode_with_dropout(text, 0.3, key, [sample])) for key in ((1, 0), (0, 1), (1, 1), (11,), (1,)) for sample in (0, 1)}
    assert len(drawn) == 10


def test_the_rarest_drop_still_draws() -> None:
    assert next(_kept_run_lengths(5e-324, (1,))) > 10**18


def test_draws_are_pinned() -> None:
    assert list(islice(_kept_run_lengths(0.1, (1, 2, 3)), 10)) == [17, 27, 7, 9, 15, 36, 9, 16, 5, 9]


@pytest.mark.parametrize("p", [0.05, 0.3, 0.8])
def test_survivals_are_geometric(p: float) -> None:
    n = 20_000
    drawn = Counter(islice(_kept_run_lengths(p, (1,)), n))
    for k in range(5):
        expected = (1 - p) ** k * p
        assert abs(drawn[k] / n - expected) < 4 * math.sqrt(expected * (1 - expected) / n)


def test_distribution_is_the_papers() -> None:
    """Computed by hand for "abc": candidates ab, then bc; p = 0.3 and q = 0.7.

    ab is merged with q, bc with pq, nothing with p^2; then ab+c and a+bc are offered alone and merged with q.
    """
    n, q = 10_000, 0.7
    drawn = Counter(tuple(toy().encode(" abc", 0.3, (sample,))) for sample in range(n))
    expected = {(5,): q * q + 0.3 * q * q, (3, 2): q * 0.3, (0, 4): 0.3 * q * 0.3, (0, 1, 2): 0.09}
    assert math.isclose(sum(expected.values()), 1)
    assert set(drawn) == set(expected)
    for numbers, share in expected.items():
        assert abs(drawn[numbers] / n - share) < 4 * math.sqrt(share * (1 - share) / n)


def test_equal_ranks_are_merged_from_the_left() -> None:
    merges = MergeDropout({(0, 0): (0, 1)}, lambda text: [text], lambda word: [0] * len(word.strip()))
    assert merges.encode(" aaa", 0.0, ()) == [1, 0]
