"""The data report on data with known problems."""

import json

from transom.config.data import PairTokenizerConfig as TokenizerConfig
from transom.data.pairs.loader import PairLoader
from transom.data.pairs.pairs import Pairs
from transom.data.reports.pairs import report_pairs
from transom.data.reports.report import DataReport
from transom.data.split import Splits
from transom.data.tokenizer.tokenizer import Tokenizers

GOOD = [(f"a b c d {i}", f"x y z w {i}") for i in range(20)]
TRAIN = [*GOOD, ("", "x"), GOOD[3], ("a", "x " * 9), ("a " * 30, "x " * 30), GOOD[3], ("a b c d 4", "x")]
VALID = [("a b c d 1", "x y z w 1"), ("a b c d 2", "x y"), ("a q r q", "x ! y"), ("a " * 25, "x")]


def pairs_of(rows: list[tuple[str, str]], name: str) -> Pairs:
    return Pairs([s for s, _ in rows], [t for _, t in rows], name)


def reported(train: list[tuple[str, str]], valid: list[tuple[str, str]], test: list[tuple[str, str]] | None = None) -> DataReport:
    splits = Splits(pairs_of(train, "t.en, t.de"), pairs_of(valid, "v.tsv"), None if test is None else pairs_of(test, "generated"))
    tokenizers = Tokenizers.train(pairs_of([*train, *valid], ""), TokenizerConfig(kind="whitespace", vocab_size=99, joint=False))
    return report_pairs(splits, tokenizers, PairLoader(splits.train, tokenizers, max_seq_len=20, batch_tokens=60, seed=1))


def test_faults_are_found_and_named() -> None:
    report = reported(TRAIN, VALID)
    assert report.problems == [
        "train: dropped (with an empty side): 1 of 26 pairs, line 21",
        "train: dropped (longer than 20 tokens): 1 of 26 pairs, line 24",
        "train: equal to an earlier pair: 2 of 26 pairs, lines 22, 25",
        "train: length ratio more than 3 times above or below the median: 1 of 26 pairs, line 23",
        "valid: 1 of 4 pairs also in training, so its scores are too optimistic",
        "valid: dropped (longer than 20 tokens): 1 of 4 pairs, line 4",
        "valid source: 2 symbols absent from the training data, 3 times, such as q r",
        "valid target: 1 symbol absent from the training data, 1 time, such as !",
    ]
    assert report.statistics["dropped"] == {"with an empty side": 1, "longer than 20 tokens": 1}
    assert report.statistics["pairs"]["train"] == {"pairs": 26, "from": "t.en, t.de", "duplicates": 2, "different sources": 23}
    assert report.statistics["pairs"]["valid"] == {
        "pairs": 4,
        "from": "v.tsv",
        "duplicates": 0,
        "different sources": 4,
        "also in training": 1,
        "sources also in training": 2,
    }
    assert report.statistics["longest"][:2] == [
        {"line": 24, "source_tokens": 30, "target_tokens": 30},
        {"line": 23, "source_tokens": 1, "target_tokens": 9},
    ]
    assert report.statistics["tokens"]["train source"] == {
        "shortest": 0,
        "1%": 0,
        "25%": 5,
        "median": 5,
        "75%": 5,
        "99%": 30,
        "longest": 30,
        "mean": 5.62,
        "total": 146,
    }
    assert set(report.statistics["tokens"]) == {"train source", "train target", "valid source", "valid target"}
    assert report.statistics["unseen"]["valid source"] == {"symbols": 2, "occurrences": 3, "such as": "q r"}


def test_good_data_have_no_problems() -> None:
    report = reported(GOOD, [("a b", "x y")], [("c d", "z w")])
    assert report.problems == [] and report.statistics["dropped"] == {}
    assert list(report.statistics["pairs"]) == ["train", "valid", "test"]


def test_it_reads_as_lines_and_as_json() -> None:
    report = reported(TRAIN, VALID)
    assert json.loads(json.dumps(report.to_json())) == report.to_json()
    assert report.to_json()["problems"] == report.problems
    lines = report.lines()
    assert lines[:3] == [
        "train: 26 pairs (t.en, t.de)",
        "  source tokens: median 5, 99% up to 30, longest 30, 146 in all",
        "  target tokens: median 5, 99% up to 30, longest 30, 151 in all",
    ]
    assert "dropped from training: 1 longer than 20 tokens" in lines
    assert "longest training lines: 24 (30 tokens), 23 (9 tokens), 1 (5 tokens), 2 (5 tokens), 3 (5 tokens)" in lines
    assert any(line.startswith("padding: ") for line in lines)
    assert lines[-len(report.problems) :] == [f"warning: {problem}" for problem in report.problems]
    assert all("\n" not in line for line in lines)


def test_only_some_examples_are_named() -> None:
    report = reported([*GOOD, *GOOD], [("a b", "x y")])
    assert report.problems == ["train: equal to an earlier pair: 20 of 40 pairs, lines 21, 22, 23, 24, 25, ..."]
