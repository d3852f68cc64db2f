"""``transom plot`` writes a picture and its numbers, describes it in words, and says in one line what it cannot draw."""

import csv
import re
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Call, Trained
from transom.cli.plot import KindName, plot
from transom.inspection.plots.kinds import KINDS


def test_the_help_lists_every_kind_and_option() -> None:
    listed = re.findall(r"^    (\w+) {2,}", plot.__doc__ or "", re.MULTILINE)
    assert listed == list(KINDS) == list(KindName.__args__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["heads", "alignment", "probabilities", "positions", "architecture"])
def test_picture_and_numbers_are_written(kind: str, transom: Call, trained: Trained, tmp_path: Path) -> None:
    text = ["ab ba"] if KINDS[kind].has_input else []
    outcome = transom("plot", kind, trained.folder, *text, "--out", tmp_path / "a.svg")
    assert outcome.code == 0 and f"wrote {tmp_path / 'a.svg'} and {tmp_path / 'a.csv'}" in outcome.err
    title, alt = outcome.out.strip().split("\n")
    drawn = (tmp_path / "a.svg").read_text()
    assert title and "<desc>" in drawn and alt[:20] in drawn.replace("&#x27;", "'")
    rows = list(csv.reader((tmp_path / "a.csv").read_text().splitlines()))
    found = transom("plot", kind, trained.folder, *text, "--out", tmp_path / "b.svg", "--json").json
    assert found["alt"] == alt and len(found["rows"]) == len(rows) - 1 and found["columns"] == rows[0]
    assert (tmp_path / "b.svg").read_bytes() == (tmp_path / "a.svg").read_bytes()


@pytest.mark.long
def test_heads_forming_are_drawn_from_the_checkpoints(transom: Call, trained: Trained, tmp_path: Path) -> None:
    shorter = [each.replace("training.max_steps=10", "training.max_steps=4") for each in trained.command]
    run, out = tmp_path / "run", tmp_path / "a.svg"
    assert transom(*shorter, "--set", "training.checkpoint_every=2", "--out", run, "--json").code == 0
    drawn = transom("plot", "formation", run, "ab ba", "--out", out)
    assert drawn.code == 0 and "at 2 steps of training, from 2 to 4." in drawn.out and f"wrote {out} and" in drawn.err
    again = transom("plot", "formation", run, "ab ba", "--out", tmp_path / "b.svg")
    assert again.code == 0 and (tmp_path / "b.svg").read_bytes() == out.read_bytes()
    assert (tmp_path / "b.csv").read_text().startswith("step,layer,head,score,value\n2,encoder.blocks.0.attn,0,previous-token,")
    assert "expected TEXT or --input, found both" in transom("plot", "formation", run, "ab", "--input", trained.source).error
    shutil.rmtree(run / "checkpoints" / "step-2")
    refused = transom("plot", "formation", run, "ab ba", "--out", tmp_path / "c.svg").error
    assert "expected a run with two checkpoints or more, found step-4" in refused and "training.keep_checkpoints" in refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("heads", "RUN"), "expected TEXT or --input, found both or neither"),
        (("heads", "RUN", "ab", "--out", "a.pdf"), "a.pdf: expected a file that ends in .svg, .png, .html, .csv, found '.pdf'"),
        (
            ("heads", "RUN", "ab", "--head", "1"),
            "--head: expected an option of heads, found one of another kind; heads has --attention, --blocks",
        ),
        (("architecture", "RUN", "ab"), "expected no TEXT and no --input for architecture"),
        (
            ("probabilities", "RUN", "ab", "--temperatures", "1,x"),
            "--temperatures: expected numbers above 0, separated by commas, found '1,x'",
        ),
        (("head", "RUN", "ab", "--block", "9"), "--block: expected indices from 0 to 0, found 9"),
        (("head", "RUN", "ab", "--head", "9"), "--head: expected indices from 0 to 1, found 9"),
        (("heads", "RUN", "ab", "--out", "missing/a.svg"), "expected an output file in a folder that exists"),
        (("heads", "RUN", ""), "TEXT: expected a text of at least one token, found none"),
        (("experts", "RUN", "ab"), "expected a model with a mixture of experts, found none"),
        (("flower", "RUN"), "'flower' is not one of"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    arguments: tuple[str, ...], message: str, transom: Call, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in transom("plot", *(trained.folder if each == "RUN" else each for each in arguments)).error
    assert not list(tmp_path.iterdir())
