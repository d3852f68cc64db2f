"""``transom profile``: the tables, the JSON, the trace and its errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Call, sets

PROFILERS_OWN = ("USDT:", "STAGE:")
"""Beginnings of lines that PyTorch's profiler prints, unless the command has started it first in its process."""

SMALL = ("profile", "copy", *sets(*TINY), "--steps", "1")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("transom.planning.hardware.BUDGET", 0.01)
    monkeypatch.chdir(tmp_path)


def test_it_prints_the_budget_and_writes_no_run(transom: Call, tmp_path: Path) -> None:
    page = transom(*SMALL)
    assert page.code == 0 and "step 1 of 1" in page.err and not any(tmp_path.iterdir())
    for shown in ("the profiler adds", "waiting for data", "attention projections", "aten::", "transom plan", "FLOPs per step"):
        assert shown in page.out
    assert max(map(len, page.out.splitlines())) <= 160


def test_the_figures_are_in_the_json_and_the_steps_in_a_trace(transom: Call, tmp_path: Path) -> None:
    answer = transom(*SMALL, "--trace", tmp_path / "steps.json", "--json")
    value = answer.json
    assert value["steps"] == 1 and not [line for line in answer.err.splitlines() if not line.startswith(PROFILERS_OWN)]
    assert sum(value["parts"].values()) == pytest.approx(value["profiled_seconds"])
    assert value["components"]["feed-forward"]["utilization"] > 0 and value["memory"]["predicted"]["total"] > 0
    names = {event.get("name") for event in json.loads((tmp_path / "steps.json").read_text())["traceEvents"]}
    assert {"transom: forward", "transom: backward", "transom: optimizer", "transom: step"} <= names
    assert [path.name for path in tmp_path.iterdir()] == ["steps.json"]


@pytest.mark.long
def test_the_memory_of_a_fresh_process_is_about_the_planned_one() -> None:
    model = ("--set", "model.d_model=256", "--set", "model.n_layers=4", "--set", "training.batch_tokens=8192")
    command = [sys.executable, "-m", "transom", "profile", "python-stdlib", *model, "--steps", "1", "--json"]
    memory = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["memory"]
    parts = sum(memory[name] for name in ("weights", "gradients", "optimizer", "data", "activations"))
    assert memory["activations"] > 0 and memory["peak"] == parts and 0.7 < parts / memory["predicted"]["total"] < 1.4


def test_bad_input_is_refused_in_one_line(transom: Call, tmp_path: Path) -> None:
    assert "expected a preset, a recipe" in transom("profile", "copi").error or "copi" in transom("profile", "copi").error
    assert "expected an output file in a folder that exists" in transom(*SMALL, "--trace", tmp_path / "no" / "x.json").error
