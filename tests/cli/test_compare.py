"""Two language models, or two classifiers, are compared on the same data; runs of different kinds are refused."""

import json
from fractions import Fraction
from math import comb
from pathlib import Path

import pytest

from tests.cli.conftest import Call, Trained, sets
from tests.cli.test_encoders import TINY as TINY_ENCODER
from tests.cli.test_encoders import classifying, filling, labelled
from tests.cli.test_language import TINY, LanguageRun, spoken
from transom.cli.main import main

__all__ = ["classifying", "filling", "labelled", "spoken"]


@pytest.fixture(scope="module")
def of_characters(spoken: LanguageRun) -> Path:
    """Train another language model on the same text, with another tokenizer."""
    out, fields = spoken.folder.parent / "characters", ("tokenizer.kind=char", "tokenizer.vocab_size=40", "training.learning_rate=0.01")
    assert main(["train", "text-bpe", "--text", str(spoken.text), *sets(*TINY, *fields), "--out", str(out), "--json"]) == 0
    return out


@pytest.fixture(scope="module")
def hasty(labelled: Path) -> Path:
    """Train another classifier, for one step."""
    out, fields = labelled.parent / "hasty", ("training.max_steps=1", "training.seed=3")
    assert main(["train", "text-classes", "--labeled-data", str(labelled), *sets(*TINY_ENCODER, *fields), "--out", str(out), "--json"]) == 0
    return out


def commands_in(run: Path) -> list[tuple[str, str]]:
    return [(entry["command"], entry["file"]) for entry in map(json.loads, (run / "ledger.jsonl").read_text().splitlines())]


@pytest.mark.long
def test_language_models_are_compared_in_bits_per_byte(transom: Call, spoken: LanguageRun, of_characters: Path) -> None:
    command = ("compare", spoken.folder, of_characters, "--text", spoken.text)
    value = transom(*command, "--json").json
    a, b = (transom("score", run, "--text", spoken.text, "--json").json["bits_per_byte"] for run in (spoken.folder, of_characters))
    assert (value["metric"], value["a"], value["b"]) == ("bits_per_byte", pytest.approx(a), pytest.approx(b))
    assert value["difference"] == pytest.approx(b - a) and value["difference_interval"][0] < b - a < value["difference_interval"][1]
    assert (value["unit"], value["n_units"], value["n_texts"]) == ("lines", 75, 25), "fewer than 30 documents, of a paragraph each"
    assert value["n_bytes"] == sum(len(file.read_bytes()) for file in spoken.text.iterdir())
    for run in (spoken.folder, of_characters):
        assert {("compare", str(file)) for file in spoken.text.iterdir()} <= set(commands_in(run))
    shown = transom(*command, "--resamples", "400", "--seed", "7")
    better = of_characters if b < a else spoken.folder
    lines = shown.out.splitlines()
    assert "bits per byte (lower is better)" in lines[0] and f" {a:.4f} " in lines[1] and f" {b:.4f} " in lines[2]
    assert lines[-2].endswith(f": {better} is better")
    assert lines[-1] == f"400 resamples of 75 lines, seed 7; 25 documents with {value['n_bytes']:,} bytes"
    assert f"25 of 25 texts by {spoken.folder} exceed the context window of 15 tokens: read in windows" in shown.err


def test_the_unit_is_the_largest_of_which_there_are_enough(transom: Call, spoken: LanguageRun, tmp_path: Path) -> None:
    def compare(*options: str | Path) -> tuple[str, int, int]:
        value = transom("compare", spoken.folder, spoken.folder, *options, "--resamples", "20", "--json").json
        assert (value["difference"], value["p_value"]) == (0.0, 1.0)
        return value["unit"], value["n_units"], value["n_texts"]

    for i in range(30):
        (tmp_path / f"{i}.txt").write_text(f"the sun of {i}\nis a sun\n\nand a star\n")
    files = [part for i in range(20) for part in ("--text", tmp_path / f"{i}.txt")]
    assert compare("--text", tmp_path) == ("documents", 30, 30)
    assert compare(*files) == ("paragraphs", 40, 20)
    assert compare(*files[:20]) == ("lines", 40, 10)
    assert compare(*files, "--document", "paragraph") == ("paragraphs", 40, 40)
    assert compare(*files, "--document", "line") == ("lines", 60, 60)
    few = transom("compare", spoken.folder, spoken.folder, *files[:4]).error
    assert "expected at least 30 lines to resample, found 8; give more text" in few


def test_what_makes_bits_incomparable_is_said(transom: Call, spoken: LanguageRun, of_characters: Path, tmp_path: Path) -> None:
    fields = ("tokenizer.lowercase=true", "training.max_steps=1")
    assert transom("train", "text-bpe", "--text", spoken.text, *sets(*TINY, *fields), "--out", tmp_path / "lower").code == 0
    (tmp_path / "text.txt").write_text("the Żółw of 3\n" * 30)
    told = transom("compare", of_characters, tmp_path / "lower", "--text", tmp_path / "text.txt", "--resamples", "5")
    assert told.code == 0 and f"warning: {of_characters}: 120 tokens are out of vocabulary" in told.err
    assert "warning: one of the models reads lower-cased text" in told.err


def test_classifiers_are_compared_by_mcnemars_test(transom: Call, classifying: Path, hasty: Path, labelled: Path, tmp_path: Path) -> None:
    rows = [line.split("\t") for line in labelled.read_text().splitlines()]
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text, _ in rows))
    right = []
    for run in (classifying, hasty):
        found = transom("classify", run, "--input", tmp_path / "texts", "--json").json
        right.append([each["label"] == label for each, (_, label) in zip(found, rows, strict=True)])
    only_a, only_b = (sum(x and not y for x, y in zip(*pair, strict=True)) for pair in (right, right[::-1]))
    n, k = only_a + only_b, min(only_a, only_b)
    p = min(1.0, float(2 * Fraction(sum(comb(n, i) for i in range(k + 1)), 2**n)))
    command = ("compare", classifying, hasty, "--labeled-data", labelled)
    value = transom(*command, "--json").json
    assert n > 0 and (value["n_only_a_right"], value["n_only_b_right"], value["n"]) == (only_a, only_b, 60)
    assert (value["a"], value["b"]) == (pytest.approx(sum(right[0]) / 0.6), pytest.approx(sum(right[1]) / 0.6))
    assert value["p_value"] == pytest.approx(p) and value["difference"] == pytest.approx(value["b"] - value["a"])
    assert commands_in(hasty)[-1] == commands_in(classifying)[-1] == ("compare", str(labelled))
    lines = transom(*command).out.splitlines()
    assert lines[1].split()[-2:] == [f"{value['a']:.2f}%", str(only_a)] and lines[2].split()[-2:] == [f"{value['b']:.2f}%", str(only_b)]
    assert lines[-2].startswith(f"p = {p:.4f}: ") and lines[-1] == "McNemar's exact test on 60 texts"
    chosen = tmp_path / "columns.csv"
    chosen.write_text("kind,words\n" + "".join(f"{label},{text}\n" for text, label in rows))
    columns = ("--text-field", "words", "--label-field", "kind")
    assert transom("compare", classifying, hasty, "--labeled-data", chosen, *columns, "--json").json == value


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("TEXT", "CLASS", "--text", "FILE"),
            "CLASS: expected a language model as in TEXT, found a classifier of texts; compare two runs",
        ),
        (("CLASS", "TRANSLATOR"), "TRANSLATOR: expected a classifier of texts as in CLASS, found a translator; compare two runs"),
        (("TEXT", "TEXT"), "TEXT: expected --text for a language model, found no test data; give --text"),
        (
            ("CLASS", "CLASS", "--text", "FILE"),
            "CLASS: expected --labeled-data for a classifier of texts, found --text; give --label",
        ),
        (
            ("TRANSLATOR", "TRANSLATOR", "--labeled-data", "FILE"),
            "TRANSLATOR: expected --source and --target (or --pairs) for a translator, found --labeled-data; give --source and --target",
        ),
        (
            ("TEXT", "TEXT", "--text", "FILE", "--labeled-data", "FILE"),
            "--labeled-data, found --text and --labeled-data; give one of them",
        ),
        (("TEXT", "TEXT", "--source", "FILE"), "expected --source and --target, or --pairs, found --source"),
        (("MASKED", "MASKED"), "expected a run that transom compare can use, found one for transom fill; use transom status MASKED, which"),
        (
            ("TEXT", "TEXT", "--text", "FILE", "--to", "de"),
            "expected --to only with --source and --target (or --pairs), found --to with",
        ),
        (
            ("CLASS", "CLASS", "--labeled-data", "FILE", "--seed", "1"),
            "expected --seed only with --source and --target (or --pairs) or",
        ),
        (("CLASS", "CLASS", "--labeled-data", "FILE", "--start", "0.5"), "expected --start only with --text, found --start with --labeled"),
        (("CLASS", "CLASS", "--labeled-data", "nowhere"), "nowhere: expected labeled texts, found nothing"),
        (
            ("TEXT", "TEXT", "--text", "FILE", "--too-long", "truncate"),
            "--too-long: expected window or refuse with a language model",
        ),
        (("TEXT", "TEXT", "--text", "FILE", "--overlap", "16"), "expected an overlap from 0 to 15"),
        (("TEXT", "TEXT", "--text", "nowhere"), "nowhere: no such file"),
    ],
)
def test_mistakes(
    arguments: tuple[str, ...],
    expected: str,
    transom: Call,
    trained: Trained,
    spoken: LanguageRun,
    classifying: Path,
    filling: Path,
    labelled: Path,
) -> None:
    places = {"TEXT": spoken.folder, "CLASS": classifying, "TRANSLATOR": trained.folder, "MASKED": filling, "FILE": labelled}
    for name in ("TEXT", "CLASS", "TRANSLATOR", "MASKED"):
        expected = expected.replace(name, str(places[name]))
    assert expected in transom("compare", *(places.get(argument, argument) for argument in arguments)).error
