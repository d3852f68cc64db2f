"""Copy, reverse and sort."""

from typing import Literal

import pytest

from transom.config.data import SequenceTaskConfig
from transom.data.pairs.pairs import Pairs
from transom.data.synthetic.sequences import generate_sequences
from transom.errors import ConfigError

Kind = Literal["copy", "reverse", "sort"]


def parts(config: SequenceTaskConfig) -> tuple[Pairs, Pairs, Pairs]:
    splits = generate_sequences(config)
    assert splits.test is not None
    return splits.train, splits.valid, splits.test


@pytest.mark.parametrize(("kind", "target"), [("copy", "c a b a"), ("reverse", "a b a c"), ("sort", "a a b c")])
def test_targets_follow_the_rule(kind: Kind, target: str) -> None:
    config = SequenceTaskConfig(kind=kind, n_train=100, n_valid=10, n_test=10, n_symbols=3, min_length=4, max_length=5)
    for pairs in parts(config):
        assert "c a b a" not in pairs.source or pairs.target[pairs.source.index("c a b a")] == target
        for source, found in zip(pairs.source, pairs.target, strict=True):
            symbols = source.split(" ")
            assert found.split(" ") == {"copy": symbols, "reverse": symbols[::-1], "sort": sorted(symbols)}[kind]


def test_sizes_symbols_and_lengths_are_those_of_the_config() -> None:
    train, valid, test = parts(
        SequenceTaskConfig(kind="sort", n_train=3000, n_valid=50, n_test=200, n_symbols=5, min_length=3, max_length=8)
    )
    assert (len(train.source), len(valid.source), len(test.source)) == (3000, 50, 200)
    sequences = [source.split(" ") for source in train.source]
    assert {len(sequence) for sequence in sequences} == set(range(3, 9))
    assert {symbol for sequence in sequences for symbol in sequence} == set("abcde")


def test_no_sequence_is_in_two_parts_or_twice_in_one_and_each_part_has_short_ones() -> None:
    train, valid, test = parts(SequenceTaskConfig(kind="copy", n_train=2000, n_valid=200, n_test=400))
    everything = train.source + valid.source + test.source
    assert len(set(everything)) == len(everything)
    assert all(any(len(source) <= 3 for source in pairs.source) for pairs in (train, valid, test))


def test_the_same_config_gives_the_same_pairs_and_another_seed_others() -> None:
    config = SequenceTaskConfig(kind="reverse", n_train=100, n_valid=10, n_test=10)
    assert generate_sequences(config) == generate_sequences(config)
    assert generate_sequences(config) != generate_sequences(config.model_copy(update={"seed": 2}))


def test_more_training_pairs_change_no_other() -> None:
    small, large = (parts(SequenceTaskConfig(kind="copy", n_train=n, n_valid=20, n_test=30)) for n in (100, 1000))
    assert large[0].source[:100] == small[0].source
    assert large[1:] == small[1:]


def test_contradicting_lengths_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected min_length <= max_length, found 9 > 4"):
        generate_sequences(SequenceTaskConfig(kind="copy", min_length=9, max_length=4))


def test_too_few_sequences_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected 1,000 distinct train pairs of copy, found only \d+; lower n_train or"):
        generate_sequences(SequenceTaskConfig(kind="copy", n_train=1000, n_valid=10, n_test=10, n_symbols=2, max_length=7))
