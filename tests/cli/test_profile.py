"""``transom profile``: the tables, the JSON, the trace and its errors."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cli.conftest import TINY, Call, sets
from tests.models.test_compile import INDUCTOR, TRACER
from tests.training.test_step_profile import PROFILE
from transom.cli.profile_table import profile_lines
from transom.errors import DiskError
from transom.training import rank_state
from transom.training.compilation import compile_training_passes
from transom.training.step_profile import StepBench

PROFILERS_OWN = ("USDT:", "STAGE:")
"""Beginnings of lines that PyTorch's profiler prints, unless the command has started it first in its process."""

SMALL = ("profile", "copy", *sets(*TINY), "--steps", "1")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("transom.planning.hardware.BUDGET", 0.01)
    monkeypatch.chdir(tmp_path)


def test_it_prints_the_budget_and_writes_no_run(transom: Call, tmp_path: Path) -> None:
    page = transom(*SMALL)
    assert page.code == 0 and "reading the data ..." in page.err and not any(tmp_path.iterdir())
    for shown in ("the profiler adds", "waiting for data", "attention projections", "aten::", "transom plan", "FLOPs per step"):
        assert shown in page.out
    assert max(map(len, page.out.splitlines())) <= 160


def test_the_figures_are_in_the_json_and_the_steps_in_a_trace(transom: Call, tmp_path: Path) -> None:
    answer = transom(*SMALL, "--trace", tmp_path / "steps.json", "--json")
    value = answer.json
    said = [line for line in answer.err.splitlines() if not line.startswith(PROFILERS_OWN)]
    assert value["steps"] == 1 and said == [f"wrote {tmp_path / 'steps.json'}"]
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
    parts = sum(memory[name] for name in ("weights", "gradients", "optimizer", "average", "data", "activations"))
    assert memory["activations"] > 0 and memory["peak"] == parts and 0.7 < parts / memory["predicted"]["total"] < 1.4


@pytest.mark.long
@pytest.mark.compile
@pytest.mark.filterwarnings(TRACER, INDUCTOR)
def test_compiled_passes_are_one_row_and_noted(transom: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_state, "compile_training_passes", partial(compile_training_passes, backend="eager"))
    page = transom(*SMALL, *sets("training.compile=on"))
    rows = [line[2:].split("  ")[0] for line in page.out.splitlines()]
    assert "compiled passes" in rows and "output projection and loss" in rows and "masks and positions" not in rows
    assert "torch.compile" in page.err


def test_figures_of_a_step_agree() -> None:
    lines = profile_lines(PROFILE, "tokens")
    assert lines[0] == "mine: a step takes 800.00 ms in fp32 with 1 thread, median of 2 steps of 100 tokens"
    assert lines[1].startswith("matrix products: 5e+09 FLOPs per step, 6.2 GFLOP/s, 31% of the 20")
    assert lines[2] == "the profiler adds +25.0%; the times below are those of a step with it, 1,000.00 ms"


def test_used_and_planned_memory_are_of_the_same() -> None:
    lines = profile_lines(PROFILE, "tokens")
    start = next(i for i, line in enumerate(lines) if "memory of the first steps" in line)
    rows = {line[2:46].strip(): line[46:].split() for line in lines[start + 1 : start + 8]}
    assert list(rows)[-3:] == ["sum without data", "data, and what else was loaded, not planned", "peak"]
    assert rows["data, and what else was loaded, not planned"][-1] == rows["peak"][-1] == "-" and "averaged weights" not in rows


def test_a_trace_that_cannot_be_written_costs_no_measurement(transom: Call, tmp_path: Path) -> None:
    failed = transom(*SMALL, "--trace", tmp_path / f"{'x' * 250}.json")
    assert "cannot write" in failed.error and "the name is too long" in failed.error and "reading the data" not in failed.err
    assert "--trace: expected the name of a file, found none" in transom(*SMALL, "--trace", "").error


def test_the_table_is_printed_before_a_trace_fails(transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: StepBench, path: Path) -> NoReturn:
        raise DiskError(f"cannot write {path}: the disk is full")

    monkeypatch.setattr(StepBench, "write_trace", fail)
    failed = transom(*SMALL, "--trace", tmp_path / "steps.json")
    assert failed.code == 2 and "the profiler adds" in failed.out and failed.err.endswith("the disk is full\n")


def test_bad_input_is_refused_in_one_line(transom: Call, tmp_path: Path) -> None:
    assert "expected a preset, a recipe" in transom("profile", "copi").error or "copi" in transom("profile", "copi").error
    assert "expected an output file in a folder that exists" in transom(*SMALL, "--trace", tmp_path / "no" / "x.json").error
