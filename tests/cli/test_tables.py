"""Tables on the command line: columns, headers, and the question about a first line in a terminal."""

import json
import sys
from pathlib import Path

import pexpect
import pytest

from tests.cli.conftest import Call, sets

WORDS = ["plot", "film", "actor", "scene", "story"]
TINY = (
    *("model.d_model=16", "model.d_ff=16", "model.n_heads=2", "model.n_layers=1", "tokenizer.kind=char", "training.max_steps=4"),
    *("training.validate_every=2", "training.checkpoint_every=2", "training.batch_tokens=512", "training.precision=fp32"),
)
REVIEWS = [(f"the {WORDS[i % 5]} is {('fine', 'poor')[i % 2]} indeed {i}", ("good", "bad")[i % 2]) for i in range(60)]


def write_reviews(path: Path, *header: str) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in ([header] if header else []) + REVIEWS))
    return path


def train(*arguments: str | Path) -> list[str | Path]:
    return ["train", "text-classes", *arguments, *sets(*TINY)]


def test_a_header_of_known_names_is_reported_and_makes_no_class(transom: Call, tmp_path: Path) -> None:
    path = write_reviews(tmp_path / "reviews.tsv", "review", "sentiment")
    outcome = transom(*train("--labeled-data", path, "--out", tmp_path / "run"))
    assert outcome.code == 0
    assert "train: the first line is a header: text from 'review', label from 'sentiment'" in outcome.err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["classes"] == ["bad", "good"]
    assert "the first line is a header" in (tmp_path / "run" / "report.html").read_text()


def test_a_suspicious_line_is_refused_outside_a_terminal(transom: Call, tmp_path: Path) -> None:
    path = write_reviews(tmp_path / "reviews.tsv", "wording", "mood")
    error = transom(*train("--labeled-data", path, "--out", tmp_path / "run")).error
    assert "no other line has the class 'mood'; use --header or --no-header" in error
    assert transom(*train("--labeled-data", path, "--header", "--out", tmp_path / "run", "--json")).code == 0
    assert "header = true" in (tmp_path / "run" / "recipe.toml").read_text()
    assert transom(*train("--labeled-data", path, "--no-header", "--out", tmp_path / "other", "--json")).code == 0
    assert json.loads((tmp_path / "other" / "config.json").read_text())["model"]["classes"] == ["bad", "good", "mood"]


@pytest.mark.long
@pytest.mark.parametrize(("answer", "classes"), [("y", ["bad", "good"]), ("n", ["bad", "good", "mood"])])
def test_a_suspicious_line_is_asked_about_in_a_terminal(tmp_path: Path, answer: str, classes: list[str]) -> None:
    path = write_reviews(tmp_path / "reviews.tsv", "wording", "mood")
    arguments = [str(argument) for argument in train("--labeled-data", path, "--out", tmp_path / "run")]
    with pexpect.spawn(sys.executable, ["-m", "transom", *arguments], encoding="utf-8", timeout=120, dimensions=(24, 200)) as terminal:
        terminal.expect(r"Is this line a header\? \[y/N\]")
        terminal.sendline(answer)
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["classes"] == classes


def test_columns_are_chosen_listed_and_remembered(transom: Call, tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text("id,wording,mood\n" + "".join(f"{i},{text},{label}\n" for i, (text, label) in enumerate(REVIEWS)))
    out, columns = tmp_path / "run", ("--text-field", "wording", "--label-field", "mood")
    error = transom(*train("--labeled-data", path, "--header", "--out", out)).error
    assert "found the columns id, wording, mood; use --text-field id --label-field wording" in error
    assert transom(*train("--labeled-data", path, *columns, "--out", out, "--json")).code == 0
    scored = transom("classify", out, "--labeled-data", path)
    assert scored.code == 0 and "of 60 texts" in scored.out
    assert "the first line is a header: text from 'wording', label from 'mood'" in scored.err
    other = write_reviews(tmp_path / "other.tsv")
    assert "expected the column 'wording', found the columns" in transom("classify", out, "--labeled-data", other).error
    by_index = transom("classify", out, "--labeled-data", other, "--text-field", "0", "--label-field", "1", "--json")
    assert by_index.json["n"] == 60


def test_pairs_come_from_one_table(transom: Call, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("en,es\n" + "".join(f"word {i},palabra {i}\n" for i in range(120)))
    small = sets(*(each for each in TINY if "n_layers" not in each), "model.n_encoder_layers=1", "model.n_decoder_layers=1")
    out = tmp_path / "run"
    outcome = transom("train", "translation", "--pairs", path, "--out", out, *small)
    assert outcome.code == 0 and "source from 'en', target from 'es'" in outcome.err
    assert transom("evaluate", out, "--pairs", path, "--json").json["sentences"] == 120
    assert len(transom("score", out, "--pairs", path, "--source-field", "es", "--target-field", "en", "--json").json["pairs"]) == 120
    assert transom("compare", out, out, "--pairs", path, "--json").json["difference"] == 0
    for command in ("evaluate", "score"):
        assert (
            "expected --source and --target, or --pairs, found --source and --pairs"
            in transom(command, out, "--pairs", path, "--source", path).error
        )
    assert "expected --header only with --pairs" in transom("evaluate", out, "--source", path, "--target", path, "--header").error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["text-classes", "--text-field", "review"],
            "expected --text-field with data files that it applies to, found none; give --labeled-data",
        ),
        (["images", "--images", "photos", "--text-field", "x"], "expected --text-field with data files that it applies to, found --images"),
        (["translation", "--source", "a", "--target", "b", "--source-field", "x"], "--source-field requires --pairs"),
        (["translation", "--pairs", "a.csv", "--labeled-data", "b.csv"], "expected data files of one kind"),
        (["text-bpe", "--labeled-data", "b.csv"], "trains on --text, found --labeled-data"),
        (["text-classes", "--pairs", "b.csv"], "trains on --labeled-data, found --source and --target (or --pairs)"),
    ],
)
def test_options_that_do_not_fit(transom: Call, arguments: list[str], error: str) -> None:
    assert error in transom("train", *arguments).error


def test_the_tokenizer_is_trained_on_the_same_columns(transom: Call, tmp_path: Path) -> None:
    path = write_reviews(tmp_path / "reviews.tsv", "wording", "mood")
    command = ["tokenizer", "train", "text-classes", "--labeled-data", path, "--out", tmp_path / "tokenizer.json"]
    assert "use --header or --no-header" in transom(*command).error
    assert transom(*command, "--header").code == 0
