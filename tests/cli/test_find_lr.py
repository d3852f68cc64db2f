"""``transom find-lr``: a rate with its reason, the same for the same seed, and nothing is left behind."""

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call, sets
from tests.training.conftest import changed
from transom.config.recipe import load_recipe
from transom.tasks.find_lr import describe_schedule, fresh_model_steps

TINY = sets(
    *("model.d_model=16", "model.n_heads=2", "model.d_ff=16", "model.n_encoder_layers=1", "model.n_decoder_layers=1"),
    *("data.generate.n_train=200", "data.generate.n_valid=10", "data.generate.n_test=10", "training.precision=fp32"),
)
COMMAND = ["find-lr", "copy", *TINY, "--steps", "40", "--from", "1e-5"]


@pytest.fixture
def nothing_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give an empty working folder, and temporary files another."""
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


@pytest.mark.long
def test_a_rate_is_suggested_with_its_reason_and_nothing_is_kept(transom: Call, nothing_left: Path) -> None:
    value = transom(*COMMAND, "--json").json
    assert not list(nothing_left.rglob("*.*")), "no run, no tokenizer"
    page = transom(*COMMAND, "--out", "rates.svg")
    lines = page.out.splitlines()
    assert lines[0].split() == ["learning", "rate", "smoothed", "loss"] and any("steepest descent" in line for line in lines)
    assert lines[-1] == f"--set {value['set']}" and f"suggested learning rate: {value['suggestion']:g}, " in page.out
    assert value["suggestion"] == pytest.approx(min(value["steepest"], value["cap"]), rel=0.05)
    assert len(value["points"]) <= 40 and value["points"][0]["learning_rate"] == 1e-5
    assert sorted(path.name for path in (nothing_left / "here").iterdir()) == ["rates.csv", "rates.svg"]
    assert "learning rate" in Path("rates.svg").read_text() and Path("rates.csv").read_text().count("\n") == len(value["points"]) + 1
    assert "measuring the machine" in page.err and "smoothed loss falls fastest" in page.err
    assert transom(*COMMAND, "--json").json == value, "the same seed gives the same numbers"
    assert transom(*COMMAND, "--json", "--set", "training.seed=2").json["points"] != value["points"]


@contextmanager
def valley(*_: Any) -> Iterator[tuple[Callable[[float], float], list[str]]]:
    """Yield steps whose loss is lowest at 1e-3, in place of a training."""
    yield lambda rate: abs(math.log10(rate) + 3), []


def test_the_picture_and_its_numbers_are_named_and_may_be_replaced(
    transom: Call, nothing_left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transom.tasks.find_lr.fresh_model_steps", valley)
    for _ in range(2):
        assert "wrote mine.svg and mine.csv: " in transom("find-lr", "copy", "--out", "mine.svg").err
    assert Path("mine.csv").read_text().startswith("learning rate,loss,smoothed loss\n")
    assert "wrote mine.csv: " in transom("find-lr", "copy", "--out", "mine.csv").err
    assert ".csv file beside it" in " ".join(transom("find-lr", "--help").out.replace("│", "").split())


def test_numbers_replace_no_file_of_another_kind(transom: Call, nothing_left: Path) -> None:
    for content in ("year,rate\n1,2\n", ""):
        Path("mine.csv").write_text(content)
        error = transom("find-lr", "copy", "--out", "mine.svg").error
        assert "mine.csv: expected no file, or one with the columns learning rate,loss,smoothed loss" in error
        assert Path("mine.csv").read_text() == content and not Path("mine.svg").exists()


def test_one_process_takes_the_steps_of_several() -> None:
    recipe = load_recipe("copy", [*TINY[1::2], "model.dropout=0.0"])[0]
    losses = []
    for n in (1, 2):
        with fresh_model_steps(changed(recipe, n), Path()) as (train_step, _):
            losses.append([train_step(1e-3) for _ in range(3)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            [],
            "the peak of the recipe's schedule cosine, reached after 100 steps of warmup; at step 1,500, the last, the rate is 0.02 times",
        ),
        (["training.schedule=wsd", "training.schedule.warmup_steps=0"], "schedule wsd, from the first step"),
        (["training.schedule=inverse-sqrt", "training.schedule.warmup_steps=15"], "the last, the rate is 0.1 times as high"),
        (["training.learning_rate=noam", "model.d_model=100"], 'training.learning_rate = "noam", a peak of 0.01 computed from'),
        (["training.max_steps=50"], "it stays below its peak"),
    ],
)
def test_what_the_schedule_makes_of_the_rate_is_said(settings: list[str], said: str) -> None:
    assert any(said in line for line in describe_schedule(load_recipe("copy", settings)[0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["copy", "--from", "1", "--to", "0.1"], "--from: expected a learning rate below --to = 0.1, found 1"),
        (["copy", "--from", "0"], "--from: expected a finite learning rate above 0, found 0"),
        (["copy", "--to", "inf"], "--to: expected a finite learning rate above 0, found inf"),
        (["copy", "--to", "nan"], "--to: expected a finite learning rate above 0, found nan"),
        (["copy", "--steps", "10000000000"], "expected a number less than or equal to 100000"),
        (["copy", "--steps", "9"], "expected a number greater than or equal to 10"),
        (["copi"], "expected a packaged recipe or the path of a .toml file, found 'copi'; did you mean copy?"),
        (["copy", "--set", "training.lerning_rate=1"], "unknown field training.lerning_rate; did you mean training.learning_rate"),
        (["copy", "--out", "rates.gif"], "rates.gif: expected a file that ends in .svg, .png, .html, .csv, found '.gif'"),
        (["copy", "--out", "nowhere/rates.svg"], "found no folder nowhere"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: list[str], message: str, transom: Call, nothing_left: Path) -> None:
    assert message in transom("find-lr", *arguments).error
    assert not list(nothing_left.rglob("*.*"))
