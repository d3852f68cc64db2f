"""``transom average``: the mean of kept checkpoints in a new run folder that every command loads."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import transom as package
from tests.cli.conftest import TINY, Call, Trained, sets
from transom.checkpoints.run_folder import RunFolder
from transom.tasks import average as module


@pytest.fixture(scope="module")
def run(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train for 12 steps and keep the weights of four checkpoints."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    more = ("training.max_steps=12", "training.checkpoint_every=2", "training.keep_checkpoints=4", "training.average=none")
    changes = dict(each.split("=", 1) for each in (*TINY, *more))
    files = {"source": trained.source, "target": trained.target}
    package.train("translation", folder, [f"{name}={value}" for name, value in changes.items()], progress=False, **files)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def mean(run: Path, *steps: int) -> dict[str, np.ndarray]:
    parts = [load_file(run / "checkpoints" / f"step-{step}" / "model.safetensors") for step in steps]
    return {name: np.mean([part[name].astype(np.float64) for part in parts], axis=0) for name in parts[0]}


def test_the_average_is_a_run_of_its_own(run: Path, transom: Call) -> None:
    assert RunFolder.open(run).checkpoints.steps() == [6, 8, 10, 12]
    before, out = content(run), run.with_name("run-averaged")
    value = transom("average", run, "--last", "3", "--json").json
    assert content(run) == before, "the run itself is only read"
    assert value["folder"] == str(out) and value["steps"] == [8, 10, 12]
    for name, x in load_file(out / "model.safetensors").items():
        if (exact := mean(run, 8, 10, 12).get(name)) is not None:
            assert np.abs(x - exact).max() <= 1e-6
    records = RunFolder.open(out).metrics.read()
    assert records[-1]["loss"] == records[-1]["averaged_loss"] == value["average"]["loss"] and records[-1]["best"]
    assert value["run"]["loss"] == pytest.approx(min(r["loss"] for r in records[:-1] if r["kind"] == "validation"), abs=1e-6)
    assert value["last"]["loss"] == pytest.approx([r for r in records[:-1] if r["kind"] == "validation"][-1]["loss"], abs=1e-6)
    assert RunFolder.open(out).run_id not in (None, RunFolder.open(run).run_id)
    for command in (("translate", out, "ab ba"), ("status", out), ("runs", out)):
        assert transom(*command).code == 0
    assert (out / "report.html").exists() and (out / "README.md").exists() and not (out / "checkpoints").exists()
    assert "found a run; give another --out" in transom("average", run).error
    error = transom("train", "--resume", "--out", out).error
    assert "expected a run to resume, found the average of checkpoints; train on from it with --init-from" in error


def test_named_checkpoints_and_all_of_them(run: Path, transom: Call, tmp_path: Path) -> None:
    found = transom("average", run, "--checkpoints", "step-6,step-12", "--out", tmp_path / "two")
    assert found.code == 0 and "averaged the checkpoints of steps 6, 12\nvalidation loss of" in found.out
    exact = mean(run, 6, 12)
    assert all(
        np.abs(x - exact[name]).max() <= 1e-6 for name, x in load_file(tmp_path / "two" / "model.safetensors").items() if name in exact
    )
    assert transom("average", run, "--out", tmp_path / "all", "--json").json["steps"] == [6, 8, 10, 12]


def test_what_cannot_be_averaged_is_refused(run: Path, transom: Call, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    few = transom("average", run, "--last", "5", *out).error
    assert "expected at least 5 checkpoints to average, found 4 (step-6, step-8, step-10, step-12)" in few
    assert "training.keep_checkpoints sets how many a run keeps" in few
    assert "expected the checkpoint step-7, found 4" in transom("average", run, "--checkpoints", "step-7", *out).error
    assert "expected at least 2 checkpoints to average, found 1 named" in transom("average", run, "--checkpoints", "6", *out).error
    assert "expected steps such as step-500,step-1000" in transom("average", run, "--checkpoints", "last", *out).error
    assert "expected --last only with all kept" in transom("average", run, "--last", "2", "--checkpoints", "6,8", *out).error
    assert "expected a run folder" in transom("average", tmp_path / "nowhere", *out).error
    assert not (tmp_path / "out").exists()
    for place in (run, run / "checkpoints" / "new", run / "report.html"):
        assert "expected a new" in transom("average", run, "--out", place).error


def test_an_average_that_is_worse_is_warned_of(run: Path, transom: Call, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    saved = RunFolder.open(copied).checkpoints
    groups, state, _ = saved.load(12)
    groups["model"] = {name: 100 * torch.randn_like(x) if x.dim() == 2 else x for name, x in groups["model"].items()}
    saved.save(12, groups, state)
    found = transom("average", copied, "--last", "2", "--out", tmp_path / "out")
    assert found.code == 0 and "warning: the average has a higher validation loss than the run's own weights; use " in found.err


def test_a_damaged_checkpoint_leaves_nothing(run: Path, transom: Call, tmp_path: Path) -> None:
    copied = tmp_path / "run"
    shutil.copytree(run, copied)
    file = copied / "checkpoints" / "step-10" / "model.safetensors"
    save_file({name: x + 1 for name, x in load_file(file).items()}, file)
    assert str(file) in transom("average", copied, "--out", tmp_path / "out").error
    assert not (tmp_path / "out").exists()


def test_an_error_at_the_end_leaves_nothing(run: Path, transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_run_pages", fail)
    assert transom("average", run, "--out", tmp_path / "out").code != 0
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_an_adapter_is_averaged_and_merged(trained: Trained, transom: Call, tmp_path: Path) -> None:
    tuned, out = tmp_path / "tuned", tmp_path / "out"
    changes = sets("training.adapter=lora", "training.max_steps=4", "training.checkpoint_every=2", "training.learning_rate=0.1")
    assert transom(*trained.command, "--init-from", trained.folder, "--out", tuned, *changes, "--json").code == 0
    value = transom("average", tuned, "--last", "2", "--out", out, "--json").json
    assert value["steps"] == [2, 4]
    assert "adapter" not in json.loads((out / "config.json").read_text()) and transom("translate", out, "ab").code == 0
    a, b = (load_file(folder / "model.safetensors") for folder in (out, trained.folder))
    assert a.keys() == b.keys() and any(np.abs(a[name] - b[name]).max() > 0 for name in a)
