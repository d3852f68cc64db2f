"""Run folders of every format so far still load, say the same, and can be gone on with."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from transom.checkpoints.run_files import RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import load_recipe
from transom.tasks.task import set_up
from transom.training.run import train

HERE = Path(__file__).parent / "golden"
FOLDERS = sorted(path for path in HERE.iterdir() if path.is_dir() and path.name.startswith("format-"))


def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_make", HERE / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_one_for_the_present_format():
    assert HERE / f"format-{make().FORMAT_VERSION}" in FOLDERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_it_says_what_it_said(folder):
    expected = json.loads(folder.with_suffix(".json").read_text())["logits"]
    assert make().logits(folder) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_it_can_be_gone_on_with(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transom.planning.machine.BUDGET", 0.01)
    run = shutil.copytree(folder, tmp_path / "run")
    history = (run / "metrics.jsonl").read_bytes()
    recipe = load_recipe(run / RECIPE, ["training.max_steps=22"])[0]
    with RunFolder.create(run, resume=True) as opened:
        result = train(set_up(recipe, Path("/"), opened))
    assert (result.step, result.reason) == (22, "max_steps")
    assert (run / "metrics.jsonl").read_bytes().startswith(history)
    assert opened.checkpoints.load(22)[1]["progress"]["step"] == 22


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_it_is_small_and_tells_of_no_machine(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 100_000
    assert not any(str(Path.home()) in path.read_text(errors="replace") or "/work" in path.read_text(errors="replace") for path in files)
