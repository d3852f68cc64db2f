"""The front door, whole and short."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Call, sets


def test_a_short_demo_shows_all_there_is(transom: Call, tmp_path: Path) -> None:
    short = sets(*TINY, "training.max_steps=5", "data.generate={ kind = 'phrasebook', n_train = 200, n_valid = 20, n_test = 30 }")
    outcome = transom("demo", "--out", tmp_path / "run", *short)
    assert outcome.code == 0
    for expected in ("hello world\n    -> ", "exact match", "nearest training sentence", "decoder.blocks.0.cross", "report.html"):
        assert expected in outcome.out
    assert (tmp_path / "run" / "report.html").is_file()
    again = transom("demo", "--out", tmp_path / "run", *short, "--json").json
    assert (again["step"], again["held_out"]) == (5, 30), "run twice, it goes on from where it was"
    assert again["samples"][0]["source"] == "hello world"


@pytest.mark.parametrize(
    ("options", "exact_match"),
    [pytest.param(sets("training.max_steps=700"), 0.95, marks=pytest.mark.long), pytest.param([], 0.99, marks=pytest.mark.soak)],
    ids=["short", "whole"],
)
def test_the_demo_translates_what_it_has_never_seen(options: list[str], exact_match: float, transom: Call, tmp_path: Path) -> None:
    value = transom("demo", "--out", tmp_path / "run", *options, "--json").json
    assert value["held_out"] == 2000
    assert value["exact_match"] >= exact_match
    assert value["nearest_sentence_exact_match"] < 0.2
    assert value["samples"][0] == {"source": "hello world", "reference": "hola mundo", "translation": "hola mundo"}
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == value["step"]
