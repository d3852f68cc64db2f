"""BLEU by sentence length: each sentence is in one bucket, and the worse run is identified in the right bucket."""

import json

import pytest

from benchmarks import by_length
from tests.cli.conftest import Trained
from tests.cli.conftest import trained as trained  # the fixture
from transom.checkpoints.run_folder import RunFolder
from transom.data.pairs.pairs import Pairs
from transom.training.translation_metrics import bleu


def test_each_sentence_is_in_the_bucket_of_its_source_length() -> None:
    sources = ["one two", "", "one two three four", "one", "one two three four five six"]
    found = by_length.length_buckets(sources, [2, 3, 5])
    assert found == {"1 to 2": [0, 1, 3], "4 to 5": [2], "6 and more": [4]}


def test_each_bucket_has_the_bleu_of_its_sentences() -> None:
    short = [f"a small {word} is here" for word in ("dog", "cat", "house", "tree", "boat", "bird")]
    long = [f"{line} and another one of the same kind stands beside it" for line in short]
    pairs = Pairs(short + long, short + long, "made up")
    spoiled = short + [line.replace("the same kind stands", "it") for line in long]
    found = by_length.compare_by_length(spoiled, short + long, pairs, [5], lowercase=False)
    assert {name: n for name, (n, _) in found.items()} == {"1 to 5": 6, "6 and more": 6, "all": 12}
    same, worse = found["1 to 5"][1], found["6 and more"][1]
    assert same.a == same.b == pytest.approx(100) and same.difference == 0
    assert worse.a == pytest.approx(bleu(spoiled[6:], long).value) and worse.difference > 10 and worse.p_value < 0.05
    low, high = worse.difference_interval
    assert 0 < low <= worse.difference <= high
    assert by_length.format_table(found)[2].split()[:4] == ["6", "and", "more", "6"]


@pytest.mark.long
def test_comparison_is_recorded_in_the_access_logs(trained: Trained, tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--source", str(trained.source), "--target", str(trained.target)]
    results = tmp_path / "by_length.json"
    by_length.main([str(trained.folder), str(trained.folder), *files, "--edges", "2", "3", "--results", str(results)])
    record = json.loads(results.read_text())
    assert sum(part["sentences"] for name, part in record["words"].items() if name != "all") == record["words"]["all"]["sentences"] == 120
    assert record["words"]["all"]["difference"] == 0 and record["facts"]["cores"]
    assert "1 to 2" in capsys.readouterr().out
    assert [entry["command"] for entry in RunFolder.open(trained.folder).access_log.read()][-2:] == ["by_length"] * 2
