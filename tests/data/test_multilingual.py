"""Multilingual batches: sampling rates of the languages, and the same batches from any position."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.test_loader import PAIRS, Row, made, rows
from transom.config.data import PairTokenizerConfig
from transom.data.pairs.loader import PairLoader
from transom.data.pairs.multilingual import MultilingualLoader
from transom.data.pairs.pairs import Pairs
from transom.data.sampler import MicroBatching, epoch_subset, temperature_sampled_sizes
from transom.data.tokenizer.tokenizer import Tokenizers

FEW = Pairs([*PAIRS.target[:11], ""], [*PAIRS.source[:11], "a"], "few", list(range(3, 15)))
BOTH = Tokenizers.train(PAIRS, PairTokenizerConfig(vocab_size=320), ["big", "few"])


def mixture(dropout: float = 0.0, temperature: float = 2.0, rank: int = 0, world_size: int = 1) -> MultilingualLoader:
    loaders = {
        tag: PairLoader(
            pairs,
            BOTH,
            max_seq_len=60,
            batch_tokens=120,
            seed=3,
            dropout=dropout,
            micro_batching=MicroBatching(2, rank, world_size),
            source_prefix=BOTH.source.language_prefix(tag),
        )
        for tag, pairs in (("big", PAIRS), ("few", FEW))
    }
    return MultilingualLoader(loaders, temperature)


def read(mixed: MultilingualLoader, position: int, n: int) -> list[Row]:
    return [row for _, micro_batches in islice(mixed.batches_from(position), n) for row in rows(micro_batches)]


def epoch_of(mixed: MultilingualLoader, epoch: int) -> list[Row]:
    found, end = list[Row](), (epoch + 1) * mixed.n_samples
    for position, micro_batches in mixed.batches_from(epoch * mixed.n_samples):
        found += rows(micro_batches)
        if position == end:
            return found
    raise AssertionError


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=6), st.floats(1, 100))
def test_an_epoch_is_as_long_as_the_data_and_rare_languages_gain(sizes: list[int], temperature: float) -> None:
    counts = temperature_sampled_sizes(sizes, temperature)
    assert 0 <= sum(counts) - sum(sizes) < len(sizes)  # each has at least one sample
    assert temperature_sampled_sizes(sizes, 1.0) == sizes
    expected = np.array(sizes) ** (1 / temperature)
    assert np.abs(counts - sum(sizes) * expected / expected.sum()).max() <= 1
    assert counts[int(np.argmin(sizes))] >= min(sizes)


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 90), st.integers(0, 9))
def test_all_are_taken_equally_often(n: int, count: int, seed: int) -> None:
    epochs = [epoch_subset(n, count, epoch, seed, 1).tolist() for epoch in range(6)]
    assert all(len(each) == count and each == sorted(each) for each in epochs)
    times = Counter(sample for each in epochs for sample in each)
    assert max(times.values()) - min(times.get(sample, 0) for sample in range(n)) <= 1
    assert epoch_subset(n, count, 5, seed, 1).tolist() == epochs[5]
    if n > 2 and count == n // 2:
        assert set(epochs[0]).isdisjoint(epochs[1])


def test_languages_draw_apart_and_each_seed_anew() -> None:
    draws = [epoch_subset(1000, 500, 0, *key).tolist() for key in ((1, 0), (1, 1), (2, 0))]
    assert len({tuple(draw) for draw in draws}) == 3


def test_a_batch_holds_tagged_sources_of_all_languages() -> None:
    mixed = mixture()
    assert mixed.samples_per_epoch == {"big": 42, "few": 19} and mixed.n_samples == 61  # 50 and 11 with roots in proportion
    found = epoch_of(mixed, 2)
    assert Counter(row[0] >= 50 for row in found) == {False: 42, True: 19}
    for sample, source, labels in found:
        tag, pairs, number = ("big", PAIRS, sample) if sample < 50 else ("few", FEW, sample - 50)
        assert [*source[:1]] == BOTH.source.language_prefix(tag)
        assert (BOTH.source.decode(source), BOTH.target.decode(labels)) == (pairs.source[number], pairs.target[number])
    several = sum(
        len({sample >= 50 for batch in micro_batches for sample in batch.sample_ids}) > 1
        for _, micro_batches in islice(mixed.batches_from(0), 12)
    )
    assert several > 6


def test_a_pair_is_named_by_language_and_line() -> None:
    assert (mixture().describe_sample(7), mixture().describe_sample(50), mixture().describe_sample(60)) == (
        "big line 8",
        "few line 3",
        "few line 13",
    )


def test_all_as_they_are_is_every_pair_once() -> None:
    assert sorted(row[0] for row in epoch_of(mixture(temperature=1.0), 3)) == list(range(61))


WHOLE = {dropout: read(mixture(dropout), 0, 60) for dropout in (0.0, 0.2)}


@settings(max_examples=30)
@given(st.integers(0, 180), st.sampled_from([0.0, 0.2]))
def test_any_position_gives_the_same_remainder(position: int, dropout: float) -> None:
    rest = read(mixture(dropout), position, 6)
    assert WHOLE[dropout][position : position + len(rest)] == rest


@pytest.mark.parametrize("world_size", [2, 3])
def test_shards_share_each_batch(world_size: int) -> None:
    whole = [micro_batches for _, micro_batches in islice(mixture(0.2).batches_from(0), 25)]
    shards = [
        [micro_batches for _, micro_batches in islice(mixture(0.2, rank=i, world_size=world_size).batches_from(0), 25)]
        for i in range(world_size)
    ]
    for batch, *parts in zip(whole, *shards, strict=True):
        assert sorted(rows(batch)) == sorted(row for part in parts for row in rows(part))


def test_one_language_is_mixed_as_it_is() -> None:
    alone = mixture().loaders["big"]
    mixed = MultilingualLoader({"big": alone}, 5.0)
    for (a, one), (b, other) in islice(zip(alone.batches_from(3), mixed.batches_from(3), strict=False), 20):
        assert a == b and rows(one) == rows(other)
    assert mixed.padding_waste == alone.padding_waste


def test_what_the_tag_makes_too_long_is_left_out() -> None:
    longest = max(len(BOTH.source.encode(text)) for text in made(50).source)
    tight = PairLoader(
        PAIRS, BOTH, max_seq_len=longest + 1, batch_tokens=200, seed=3, source_prefix=BOTH.source.language_prefix("big"), dropout=0.5
    )
    plain = PairLoader(PAIRS, BOTH, max_seq_len=longest + 1, batch_tokens=200, seed=3)
    assert tight.n_samples < plain.n_samples
    assert max(len(row[1]) for _, micro_batches in islice(tight.batches_from(0), 30) for row in rows(micro_batches)) <= longest + 1
