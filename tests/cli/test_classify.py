"""``transom classify`` on labeled texts: metrics as text, as JSON and as a page; abstaining; the report of a run."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Call, sets
from tests.cli.test_encoders import TINY
from transom.cli.main import main

WORDS = {"Pet_Animal": ("cat", "dog"), "wild": ("wolf", "bear"), "<b>farm</b>": ("cow", "hen")}
"""Words of each class; the name of a class is shown as it is written."""


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write texts with their classes."""
    path = tmp_path_factory.mktemp("animals") / "animals.tsv"
    rows = [f"the {word} of {i}\t{label}\n" for i in range(15) for label, words in WORDS.items() for word in words]
    path.write_text("".join(rows))
    return path


@pytest.fixture(scope="module")
def run(animals: Path) -> Path:
    """Train a tiny classifier once."""
    out = animals.parent / "run"
    assert main(["train", "text-classes", "--labeled-data", str(animals), *sets(*TINY), "--out", str(out), "--json"]) == 0
    return out


def test_metrics_as_text_json_and_page(transom: Call, run: Path, animals: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    told = transom("classify", run, "--labeled-data", animals, "--precision", "fp32", "--abstain-below", "0.37", "--html", page)
    assert told.code == 0
    for expected in ("macro average", "Confusion matrix", "expected calibration error", "Guo et al. 2017", "coverage", "confident errors"):
        assert expected in told.out, expected
    found = transom("classify", run, "--labeled-data", animals, "--precision", "fp32", "--json", "--abstain-below", "0.37").json
    assert f"accuracy {found['accuracy']:.2f}% of 90 texts" == told.out.splitlines()[-1] and found["n"] == 90
    assert set(found["classes"]) <= set(WORDS) and set(found["classes"]["wild"]) == {"n", "recall", "precision", "f1"}
    assert sum(n for row in found["confusion"].values() for n in row.values()) == sum(each["n"] for each in found["calibration"]) == 90
    assert [each["threshold"] for each in found["abstention"]][:2] == [0, 0.37] and found["abstention"][0]["coverage"] == 1
    assert found["errors"][0]["p"] >= found["errors"][-1]["p"]
    assert {each["item"] for each in found["errors"]} <= {line.split("\t")[0] for line in animals.read_text().splitlines()}
    written = page.read_text()
    assert "<b>farm" not in written and "&lt;b&gt;farm" in written and "Pet_Animal" in written and written.count("<script") == 2
    svgs = [part.partition("</svg>")[0] for part in written.split("<svg")[1:]]
    assert len(svgs) == 2
    for svg in svgs:
        ElementTree.fromstring(f"<svg{svg}</svg>")


def test_the_report_shows_probabilities_and_confusions(run: Path) -> None:
    page = (run / "report.html").read_text()
    for expected in ("Classification", "Confusion matrix", "Most confident errors", "Probability", "Pet_Animal", "Calibration"):
        assert expected in page, expected
    assert "Pet animal" not in page, "a class is called what the data call it"
    record = next(each for line in (run / "metrics.jsonl").read_text().splitlines() if (each := json.loads(line))["kind"] == "validation")
    samples = record["samples"]
    assert len({each["text"] for each in samples}) == len(samples) and all(0 < each["p"] <= 1 for each in samples)
    assert len({each["class"] for each in samples}) >= 2


def test_abstaining(transom: Call, run: Path) -> None:
    texts = ["the cat of 3", "the wolf of 4"]
    sure = transom("classify", run, *texts, "--precision", "fp32", "--json").json
    line = (sure[0]["p"] + sure[1]["p"]) / 2
    found = transom("classify", run, *texts, "--precision", "fp32", "--abstain-below", f"{line!r}", "--json").json
    for before, after in zip(sure, found, strict=True):
        assert after["label"] == (None if before["p"] < line else before["label"])
        assert after["p"] == before["p"] and after["probabilities"] == before["probabilities"]
    lines = transom("classify", run, *texts, "--precision", "fp32", "--abstain-below", "1").out.splitlines()
    assert [each.split("\t")[0] for each in lines] == ["abstain", "abstain"]
    assert "abstain" not in transom("classify", run, *texts, "--precision", "fp32", "--abstain-below", "0").out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a text", "--abstain-below", "1.5"], "--abstain-below: expected a probability from 0 to 1, found 1.5"),
        (["a text", "--abstain-below", "nan"], "--abstain-below: expected a probability from 0 to 1, found nan"),
        (["a text", "--html", "page.html"], "expected --html only with --labeled-data, found --html with other inputs"),
        (["--labeled-data", "DATA", "--html", "DATA"], "animals.tsv"),
    ],
)
def test_mistakes(arguments: list[str], expected: str, transom: Call, run: Path, animals: Path) -> None:
    content = animals.read_bytes()
    assert expected in transom("classify", run, *(str(animals) if each == "DATA" else each for each in arguments)).error
    assert animals.read_bytes() == content
