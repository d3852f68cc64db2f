"""``transom train tags`` and ``transom tag``: own tagged words, texts and files of them, scores, pages and mistakes."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Call, sets
from tests.cli.test_encoders import TINY
from transom.cli.main import main

SENTENCE = "{i}\tO\nAna\tB-PER\n{more}sees\tO\na\tO\n{thing}\tB-THING\n"


@pytest.fixture(scope="session")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write sentences with tagged words."""
    path = tmp_path_factory.mktemp("tagged") / "names.conll"
    rows = [SENTENCE.format(i=i, thing=thing, more="Torres\tI-PER\n" * (i % 2)) for i in range(20) for thing in ("cat", "map")]
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="session")
def tagging(tagged: Path) -> Path:
    """Train a tiny tagger once."""
    out = tagged.parent / "tagger"
    assert main(["train", "tags", "--tagged", str(tagged), *sets(*TINY), "--out", str(out), "--json"]) == 0
    return out


def test_words_have_tags_and_entities_are_spans(transom: Call, tagging: Path, tmp_path: Path) -> None:
    told = transom("tag", tagging, "3 Ana sees a cat.", "--precision", "fp32")
    rows = [line.split("\t") for line in told.out.splitlines() if "\t" in line]
    assert told.code == 0 and [word for word, _ in rows] == ["3", "Ana", "sees", "a", "cat", "."]
    (record,) = transom("tag", tagging, "3 Ana sees a cat.", "--precision", "fp32", "--json").json
    assert record["tags"] == [tag for _, tag in rows] and len(record["p"]) == 6 and record["text"] == "3 Ana sees a cat."
    assert all(record["text"][each["start"] : each["end"]] == each["text"] for each in record["entities"])
    assert ("# " in told.out) == bool(record["entities"])
    (tmp_path / "texts").write_text("Ana sees\n\n" + "a map " * 30 + "\n")
    records = transom("tag", tagging, "--input", tmp_path / "texts", "--json").json
    assert [len(each["words"]) for each in records] == [2, 0, 60]
    written = transom("tag", tagging, "--input", tmp_path / "texts")
    assert written.code == 0 and written.out.count("\n\n") >= 2


def test_tagged_words_are_scored_and_noted(transom: Call, tagging: Path, tagged: Path) -> None:
    scores = transom("tag", tagging, "--tagged", tagged, "--json").json
    assert scores["n"] == 220 and 0 <= scores["entities"]["f1"] <= 1 and {"PER", "THING"} <= set(scores["labels"])
    turned = tagged.parent / "turned.conll"
    turned.write_text("\n".join("\t".join(reversed(line.split("\t"))) for line in tagged.read_text().split("\n")))
    assert transom("tag", tagging, "--tagged", turned, "--word-column", "1", "--tag-column", "0", "--json").json == scores
    lines = transom("tag", tagging, "--tagged", tagged).out.splitlines()
    assert lines[-1] == f"accuracy {scores['accuracy']:.2f}% of 220 words" and lines[-2].startswith("entities: F1 ")
    assert any(str(tagged) in line for line in (tagging / "ledger.jsonl").read_text().splitlines())


def test_pages_and_figures_are_those_of_a_tagger(tagging: Path, transom: Call) -> None:
    card, page = (tagging / "README.md").read_text(), (tagging / "report.html").read_text()
    assert "A tagging model: an encoder-only Transformer for token tagging" in card and "transom tag" in card and "words per second" in card
    assert 'id="tags"' in page and "Validation sentences with the tags" in page and "Validation entity F1, in %" in page
    assert "perplexity" not in page and "entity F1" in card
    records = [json.loads(line) for line in (tagging / "metrics.jsonl").read_text().splitlines()]
    assert any({"f1", "accuracy"} <= set(record) for record in records)
    embedded = transom("embed", tagging, "a cat", "a map")
    assert embedded.code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tag", "RUN", "a", "--tagged", "b"], "expected TEXT, --input or --tagged, found several"),
        (["tag", "RUN", "a", "--input", "b"], "expected TEXT or --input, found both; remove one"),
        (["tag", "RUN", "--tagged", "missing"], "missing: expected a file of tagged sentences, found nothing"),
        (
            ["tag", "RUN", "a", "--tag-column", "1"],
            "expected --tag-column only with --tagged, found --tag-column with texts; leave --tag-column out",
        ),
        (["tag", "RUN", "--tagged", "GOOD", "--tag-column", "2"], "names.conll:1: expected at least 3 columns"),
        (["tag", "RUN", "--tagged", "BAD"], "bad.conll:2: expected 2 columns, separated by spaces as in line 1, found 1"),
        (["tag", "RUN", "--tagged", "OTHER"], "other.conll:1: expected one of the tags 'B-PER', 'B-THING', 'I-PER', 'I-THING', 'O', found"),
        (["classify", "RUN", "a"], "expected a run that transom classify can use, found one for transom tag"),
        (["evaluate", "RUN", "--source", "GOOD", "--target", "GOOD"], "found one for transom tag; use transom tag RUN --tagged FILE"),
        (["train", "tags", "--tagged", "BAD", "--out", "OUT"], "bad.conll:2: expected 2 columns"),
        (
            ["train", "tags", "--tagged", "LONG", "--out", "OUT"],
            "expected tags whose names have at most 262,144 bytes together, found 300,001",
        ),
        (["train", "tags", "--out", "OUT"], "name your own files with --tagged"),
        (["train", "tags", "--valid-tagged", "BAD", "--out", "OUT"], "--valid-tagged requires --tagged"),
        (["train", "tags", "--tagged", "GOOD", "--set", "data.train.tag_column=5", "--out", "OUT"], "expected at least 6 columns"),
        (
            ["train", "tags", "--tagged", "GOOD", "--set", "training.best_checkpoint_metric=bleu", "--out", "OUT"],
            "expected 'loss', 'accuracy' or 'f1'",
        ),
    ],
)
def test_mistakes(arguments: list[str], expected: str, transom: Call, tagging: Path, tagged: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.conll").write_text("a O\nb\n")
    (tmp_path / "long.conll").write_text("".join(f"{word} {tag}\n\n" for word in "abcdefghijklmnop" for tag in ("N", "V" * 300_000)))
    (tmp_path / "other.conll").write_text("a B-LOC\n")
    files = {
        "BAD": tmp_path / "bad.conll",
        "OTHER": tmp_path / "other.conll",
        "LONG": tmp_path / "long.conll",
        "GOOD": tagged,
        "RUN": tagging,
        "OUT": tmp_path / "out",
    }
    error = transom(*(str(files.get(argument, argument)) for argument in arguments)).error
    assert expected.replace(" RUN ", f" {tagging} ") in error
