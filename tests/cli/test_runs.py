"""Runs that live: resuming by the folder alone, changed cadence, lists and states of runs."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Call, Trained, sets
from transom.inspection.pages.run_status import RunStatus


@pytest.fixture
def copied(trained: Trained, tmp_path: Path) -> Path:
    """Give a copy of a run."""
    return Path(shutil.copytree(trained.folder, tmp_path / "runs" / "copy"))


def test_a_run_resumes_by_its_folder_alone(transom: Call, trained: Trained, copied: Path) -> None:
    again = transom("train", "--resume", "--out", copied, "--steps", "15", "--json").json
    assert again["step"] == 15
    by_recipe = copied.parent / "by-recipe"
    shutil.copytree(trained.folder, by_recipe)
    assert transom(*trained.command, "--out", by_recipe, "--resume", "--steps", "15", "--json").code == 0
    assert (copied / "model.safetensors").read_bytes() == (by_recipe / "model.safetensors").read_bytes()


def test_cadence_and_observers_may_change_and_nothing_else(transom: Call, copied: Path) -> None:
    changes = sets("training.validate_every=3", "training.checkpoint_every=4", "training.log_every=2", "training.checkpoint_minutes=none")
    assert transom("train", "--resume", "--out", copied, "--steps", "16", "--minutes", "5", *changes, "--json").json["step"] == 16
    records = [json.loads(line) for line in (copied / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "validation"] == [5, 10, 12, 15, 16]
    error = transom("train", "--resume", "--out", copied, *sets("training.learning_rate=0.5")).error
    assert "the run was started with training.learning_rate" in error and "a resumed run keeps its recipe" in error


def test_what_is_missing_to_start_or_resume_is_said(transom: Call, tmp_path: Path) -> None:
    assert "expected NAME_OR_FILE, or --resume with --out RUN, found neither" in transom("train").error
    assert "expected NAME_OR_FILE, or --resume with --out RUN" in transom("train", "--resume").error
    assert "expected a run to resume, found no recipe.toml" in transom("train", "--resume", "--out", tmp_path).error


def test_runs_and_their_states_are_listed(transom: Call, trained: Trained, copied: Path, tmp_path: Path) -> None:
    assert transom("runs", tmp_path / "none").error.startswith(f"error: {tmp_path / 'none'}: expected a folder of runs")
    (tmp_path / "empty").mkdir()
    assert transom("runs", tmp_path / "empty").out == f"no runs in {tmp_path / 'empty'}\n"
    damaged = Path(shutil.copytree(copied, copied.parent / "damaged"))
    (damaged / "recipe.toml").write_text("task = ")
    stopped = Path(shutil.copytree(copied, copied.parent / "more" / "stopped"))
    (stopped / "report.html").unlink()
    found = {Path(each["path"]).name: each for each in transom("runs", copied.parent, "--json").json}
    assert {name: each["state"] for name, each in found.items()} == {"copy": "finished", "damaged": "damaged", "stopped": "stopped"}
    assert found["copy"]["step"] == found["copy"]["max_steps"] == 10 and found["copy"]["best"]["loss"] > 0
    table = transom("runs", copied.parent).out
    assert table.startswith("run") and "10 of 10" in table and trained.source.name in table and "loss " in table
    one = transom("status", copied).out
    assert "state: finished" in one and "█ 10 of 10" in one and "best validation: step " in one
    assert "expected a run folder" in transom("status", tmp_path / "empty").error


@pytest.mark.parametrize(
    ("metrics", "select_by", "shown"),
    [
        ({"loss": 5.5, "perplexity": 245.9, "bits_per_byte": 3.39}, "loss", "loss 5.5000 nats, bits per byte 3.3900"),
        ({"loss": 0.61, "accuracy": 76.4}, "accuracy", "loss 0.6100 nats, accuracy 76.40 %"),
        ({"loss": 3.4, "bleu": 11.3, "chrf": 30.0}, "bleu", "loss 3.4000 nats, BLEU 11.30"),
        ({"loss": 3.4}, "loss", "loss 3.4000 nats"),
        (None, "loss", ""),
    ],
)
def test_the_table_has_the_selecting_metric_and_the_most_telling_one(metrics: dict[str, float] | None, select_by: str, shown: str) -> None:
    assert RunStatus(Path("run"), "finished", select_by=select_by, best=metrics).best_metrics == shown


@pytest.mark.long
def test_a_running_run_is_seen_from_outside(transom: Call, trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "long"
    endless = [*trained.command, *sets("training.max_steps=1000000", "training.validate_every=5"), "--out", str(out)]
    with subprocess.Popen([sys.executable, "-m", "transom", *endless], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            for _ in range(600):
                if (out / "metrics.jsonl").exists() and '"validation"' in (out / "metrics.jsonl").read_text():
                    break
                time.sleep(0.1)
            (found,) = transom("runs", tmp_path / "runs", "--json").json
            assert found["state"] == "running" and found["seconds_left"] > 0 and found["max_steps"] == 1_000_000
            assert " left" in transom("runs", tmp_path / "runs").out and "time left: " in transom("status", out).out
        finally:
            process.terminate()
            process.wait()
    (found,) = transom("runs", tmp_path / "runs", "--json").json
    assert found["state"] == "stopped" and found["seconds_left"] is None
