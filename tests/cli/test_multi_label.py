"""Texts with any number of labels on the command line: train, classify, score, and the question about ``|`` in a terminal."""

import json
import sys
from pathlib import Path

import pexpect
import pytest

from tests.cli.conftest import Call, sets
from tests.cli.test_tables import TINY
from transom import Classifier, load, train
from transom.cli.main import main
from transom.decoding.predictors.multi_label import MultiLabelClassifier
from transom.errors import DataError

ROWS = [(f"the {word} of {i}", label) for i in range(25) for word, label in (("cat", "pet"), ("cat wolf", "wild|pet"), ("stone", ""))]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write texts with their labels."""
    path = tmp_path_factory.mktemp("labels") / "labels.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS))
    return path


@pytest.fixture(scope="module")
def run(texts: Path) -> Path:
    """Train a tiny classifier once."""
    out = texts.parent / "run"
    assert main(["train", "text-classes", "--labeled-data", str(texts), "--multi-label", *sets(*TINY), "--out", str(out), "--json"]) == 0
    return out


def test_labels_are_classified_and_scored(transom: Call, run: Path, texts: Path, tmp_path: Path) -> None:
    assert json.loads((run / "config.json").read_text())["model"]["classes"] == ["pet", "wild"]
    (found,) = transom("classify", run, "the cat of 3", "--precision", "fp32", "--json").json
    assert set(found["probabilities"]) == {"pet", "wild"} and set(found["labels"]) <= {"pet", "wild"}
    line = transom("classify", run, "the cat of 3", "--precision", "fp32").out.strip("\n")
    p = "|".join(f"{found['probabilities'][label]:.4f}" for label in found["labels"])
    assert line == (f"{'|'.join(found['labels'])}\t{p}" if found["labels"] else "(no label)")
    page = tmp_path / "page.html"
    told = transom("classify", run, "--labeled-data", texts, "--html", page, "--precision", "fp32")
    assert told.code == 0 and "micro average" in told.out and "threshold" in told.out and "Hamming loss" in told.out.splitlines()[-1]
    scores = transom("classify", run, "--labeled-data", texts, "--precision", "fp32", "--json").json
    assert scores["n"] == 75 and 0 <= scores["hamming_loss"] <= 1 and scores["classes"]["pet"]["n"] == 50
    compared = transom("compare", run, run, "--labeled-data", texts, "--json").json
    assert compared["a"] == pytest.approx(scores["subset_accuracy"], abs=2) and (compared["n"], compared["p_value"]) == (75, 1.0)
    assert f"subset accuracy {scores['subset_accuracy']:.2f}%" in told.out
    assert 'class="reliability"' in page.read_text() and page.read_text().count("<script") == 2
    report = (run / "report.html").read_text()
    assert "Classification" in report and "micro average" in report and "Validation micro F1, in %" in report


def test_abstaining_is_for_one_class(transom: Call, run: Path) -> None:
    error = transom("classify", run, "a text", "--abstain-below", "0.5").error
    assert (
        "expected --abstain-below only with a classifier of texts with one class each, found --abstain-below with one of several" in error
    )


def test_what_is_ambiguous_is_refused_outside_a_terminal(transom: Call, texts: Path, tmp_path: Path) -> None:
    command = ["train", "text-classes", "--labeled-data", texts, *sets(*TINY), "--out", tmp_path / "run"]
    assert "use --multi-label if it separates the labels of a text, or --no-multi-label if" in transom(*command).error
    full = tmp_path / "full.csv"
    full.write_text("text,label\n" + "".join(f"{text},{label or 'none'}\n" for text, label in ROWS))
    command[3] = full
    assert transom(*command, "--no-multi-label", "--json").code == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())["model"]
    assert config["classes"] == ["none", "pet", "wild|pet"] and not config["multi_label"]
    assert transom("classify", tmp_path / "run", "--labeled-data", full, "--json").json["n"] == 75, "a run knows how it was trained"
    with pytest.raises(DataError, match="use multi_label if it separates"):
        _train_in_python(full, tmp_path / "python")


def _train_in_python(path: Path, out: Path, **more: bool) -> None:
    train("text-classes", out, list(TINY), labeled_data=path, progress=False, **more)  # type: ignore[arg-type]


def test_from_python(texts: Path, tmp_path: Path) -> None:
    _train_in_python(texts, tmp_path / "run", multi_label=True)
    found = load(tmp_path / "run", kind=Classifier)
    assert isinstance(found, MultiLabelClassifier) and found.predict_proba(["a", "b"]).shape == (2, 2)
    assert found.classes_.tolist() == ["pet", "wild"] and found.thresholds.shape == (2,)


@pytest.mark.long
@pytest.mark.parametrize(("answer", "classes"), [("y", ["pet", "wild"]), ("n", ["none", "pet", "wild|pet"])])
def test_what_is_ambiguous_is_asked_in_a_terminal(tmp_path: Path, answer: str, classes: list[str]) -> None:
    path = tmp_path / "full.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label or ('' if answer == 'y' else 'none')}\n" for text, label in ROWS))
    arguments = map(str, ["train", "text-classes", "--labeled-data", path, *sets(*TINY), "--out", tmp_path / "run"])
    with pexpect.spawn(sys.executable, ["-m", "transom", *arguments], encoding="utf-8", timeout=120, dimensions=(24, 400)) as terminal:
        terminal.expect(r"Does \| separate several labels of a text\? \[y/N\]")
        terminal.sendline(answer)
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["classes"] == classes
