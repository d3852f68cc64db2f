"""Run folders of every format so far still load, say the same, and can be gone on with."""

import importlib.util
import json
import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

import transom
from tests.tiers import every
from transom.checkpoints.run_files import RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.config.migration import migrate_metrics, present_tensor_name
from transom.config.recipe import load_recipe
from transom.tasks.task import build_training_setup
from transom.training.train_loop import train

HERE = Path(__file__).parent / "golden"
FOLDERS = sorted(path for path in HERE.iterdir() if path.is_dir() and path.name.startswith("format-"))
FAMILIES = HERE / "families"
RUNS = sorted(path.with_suffix("") for path in FAMILIES.glob("*.json"))


def make(folder: Path = HERE) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{folder.name}_make", folder / "make.py")
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
    monkeypatch.setattr("transom.planning.hardware.BUDGET", 0.01)
    run = shutil.copytree(folder, tmp_path / "run")
    history = (run / "metrics.jsonl").read_bytes()
    recipe = load_recipe(run / RECIPE, ["training.max_steps=22"])[0]
    with RunFolder.create(run, resume=True) as opened:
        result = train(build_training_setup(recipe, Path("/"), opened))
    assert (result.step, result.reason) == (22, "max_steps")
    assert (run / "metrics.jsonl").read_bytes().startswith(history)
    assert opened.checkpoints.load(22)[1]["progress"]["step"] == 22


@pytest.mark.parametrize("folder", FOLDERS + RUNS, ids=lambda folder: folder.name)
def test_it_is_small_and_tells_of_no_machine(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 100_000
    assert not any(str(Path.home()) in path.read_text(errors="replace") or "/work" in path.read_text(errors="replace") for path in files)


def test_there_is_a_run_of_every_family_that_can_be_made():
    assert {run.name for run in RUNS} == make(FAMILIES).RECIPES.keys()


def recorded(run: Path) -> dict:
    return json.loads(run.with_suffix(".json").read_text())


def check_answers(run: Path, expected: dict) -> None:
    found = make(FAMILIES).answers(run)
    assert found["words"] == expected["words"]
    assert found["numbers"] == pytest.approx(expected["numbers"], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_a_family_answers_as_it_did(run):
    check_answers(run, recorded(run)["answers"])


@pytest.mark.parametrize("run", every(6, RUNS, long=2), ids=lambda run: run.name)
def test_a_family_goes_on_to_the_end_of_the_run_left_alone(run, tmp_path, monkeypatch):
    monkeypatch.setattr("transom.planning.hardware.BUDGET", 0.01)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made, copy = make(FAMILIES), shutil.copytree(run, tmp_path / "run")
    transom.train(copy / "recipe.toml", copy, made.where_from(made.DATA), resume=True)
    last = load_file(run.with_name(f"{run.name}-end.safetensors"))
    former = {present_tensor_name(name): name for name in last}
    expected, found = recorded(run), made.hashes_at_end(copy, former)
    assert found.keys() == expected["end"]["hashes"].keys()
    # oneDNN divides convolutions by the sizes of the caches, which machines of one name share differently.
    exact = made.machine() == expected["machine"] and run.name != "convolutional"
    if exact and os.environ.get("TRANSOM_KERNELS") != "reference":
        assert found == expected["end"]["hashes"]
    weights = load_file(copy / "checkpoints" / "step-6" / "model.safetensors")
    assert weights.keys() == former.keys()
    for name, x in weights.items():
        torch.testing.assert_close(x, last[former[name]], rtol=0, atol=1e-6, msg=name)
    for record, wanted in zip(made.metrics(copy), expected["end"]["metrics"], strict=True):
        assert record == pytest.approx(migrate_metrics(wanted), rel=1e-5, abs=1e-6)
    check_answers(copy, expected["end"]["answers"])
