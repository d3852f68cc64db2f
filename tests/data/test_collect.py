"""Collecting splits from a stream."""

from itertools import cycle

import pytest

from transom.data.synthetic.collect import SplitName, collect_splits
from transom.errors import ConfigError


def test_each_part_takes_its_first_different_pairs() -> None:
    stream: list[tuple[SplitName | None, str, str]] = [
        ("train", "a", "A"),
        ("test", "x", "X"),
        ("train", "a", "A"),
        (None, "n", "N"),
        ("test", "y", "Y"),
        ("train", "b", "B"),
        ("valid", "v", "V"),
        ("train", "c", "C"),
    ]
    splits = collect_splits(stream, n_train=2, n_valid=1, n_test=1, name="letters")
    assert (splits.train.source, splits.train.target) == (["a", "b"], ["A", "B"])
    assert (splits.valid.source, splits.valid.target) == (["v"], ["V"])
    assert splits.test is not None
    assert (splits.test.source, splits.test.target) == (["x"], ["X"])
    assert splits.test.name == "letters, test"


def test_a_stream_that_runs_dry_is_an_error_that_counts() -> None:
    stream: cycle[tuple[SplitName | None, str, str]] = cycle([("train", "a", "A"), ("valid", "v", "V")])
    with pytest.raises(ConfigError, match=r"expected 3 distinct train pairs of letters, found only 1; lower n_train or raise max_length$"):
        collect_splits(stream, n_train=3, n_valid=1, n_test=0, name="letters", hint="raise max_length")
