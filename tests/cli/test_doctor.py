"""``transom doctor`` examines runs of every task, writes nothing, and ends with 1 if there is a problem."""

import os
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.cli.conftest import Call, Trained
from tests.cli.test_audio import hearing, tones
from tests.cli.test_completion import complete
from tests.cli.test_encoders import classifying, filling, labelled
from tests.cli.test_images import photos, seeing
from tests.cli.test_instructions import asked, instruction_tuned
from tests.cli.test_language import LanguageRun, spoken
from tests.cli.test_tag import tagged, tagging
from transom.checkpoints.run_folder import RunFolder
from transom.config.data import PairFilesConfig
from transom.config.recipe import dump_recipe, load_recipe
from transom.inspection.doctor.checks import CHECKS
from transom.tasks import examine

__all__ = [
    "asked",
    "classifying",
    "filling",
    "hearing",
    "instruction_tuned",
    "labelled",
    "photos",
    "seeing",
    "spoken",
    "tagged",
    "tagging",
    "tones",
]

FAST = ",".join(name for name in CHECKS if name != "speed")


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Return content and time of all files below a folder."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_examined_with_its_own_data_and_nothing_is_written(transom: Call, trained: Trained) -> None:
    before = contents(trained.folder)
    start = sum(os.times()[:2])
    outcome = transom("doctor", trained.folder, "--seconds", "600")
    assert sum(os.times()[:2]) - start < 20
    assert outcome.code == 0 and contents(trained.folder) == before
    lines = outcome.out.splitlines()
    assert sorted(line.split()[0] for line in lines if line.startswith("  ") and line[2] != " ") == sorted(CHECKS)
    headings = [line for line in lines if line in ("problem", "warning", "ok", "not applicable")]
    assert headings == [each for each in ("problem", "warning", "ok", "not applicable") if each in headings] and "ok" in headings
    assert all(len(line) <= 100 for line in lines) and lines[-1].startswith("0 problem, ")
    value = transom("doctor", trained.folder, "--checks", "loss,cache,embeddings", "--seconds", "600", "--json").json
    assert [each["name"] for each in value["checks"]] == ["cache", "loss", "embeddings"] and value["verdicts"]["problem"] == 0
    found = value["checks"][1]
    assert found["message"].startswith("validation loss ") and 0 < found["value"] < 10
    recorded = [record for record in RunFolder(trained.folder).metrics.read() if record["kind"] == "validation" and record["best"]]
    assert found["value"] == pytest.approx(recorded[-1]["loss"], rel=0.01)
    assert "are not in the training data" in value["checks"][2]["message"]


def test_a_damaged_run_ends_with_1(transom: Call, trained: Trained, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained.folder, run)
    folder = RunFolder(run)
    tensors = {name: x.clone() for name, x in load_file(run / "model.safetensors").items()}
    for name, x in tensors.items():
        if name.endswith("tokens.weight"):
            x.copy_(x.flip(0) * 30)
    folder.write_tensors("model.safetensors", tensors, 10)
    outcome = transom("doctor", run, "--checks", "loss,finite", "--seconds", "600")
    assert outcome.code == 1 and outcome.out.startswith("problem\n")
    assert "training recorded" in outcome.out and "1 problem, 0 warning, 1 ok" in outcome.out
    assert transom("doctor", run, "--checks", "finite").code == 0


def test_without_data_it_is_said_what_was_left_out(transom: Call, spoken: LanguageRun, tmp_path: Path) -> None:
    checks = ("--checks", "loss,neurons,causality", "--json")
    value = transom("doctor", spoken.folder, "--no-data", *checks).json
    assert {each["name"]: each["verdict"] for each in value["checks"]} == {
        "causality": "ok",
        "loss": "not applicable",
        "neurons": "not applicable",
    }
    assert value["checks"][1]["message"] == "data were not read (--no-data)"
    run = tmp_path / "run"
    shutil.copytree(spoken.folder, run)
    recipe = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(recipe.replace(str(spoken.text), str(tmp_path / "gone")))
    assert str(tmp_path / "gone") in (run / "recipe.toml").read_text()
    value = transom("doctor", run, *checks).json
    assert value["checks"][1]["message"].startswith("the data cannot be read: ") and "gone" in value["checks"][1]["message"]
    value = transom("doctor", spoken.folder, "--seconds", "0.1", "--checks", "loss,neurons", "--json").json
    assert {each["verdict"] for each in value["checks"]} <= {"ok", "warning", "not applicable"}


def test_large_data_are_left_out_or_only_those_for_validation_are_read(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {name: tmp_path / name for name in ("source", "target")}
    for name, path in small.items():
        path.write_text("".join(getattr(trained, name).read_text().splitlines(keepends=True)[:9]))
    bytes_of_valid = sum(path.stat().st_size for path in small.values())
    monkeypatch.setattr(examine, "BYTES_PER_SECOND", bytes_of_valid)
    checkup = examine.open_checkup(trained.folder, ["loss"], 1.0, with_data=True)
    assert not checkup.batches and "MB are read in 1 s (--seconds)" in checkup.no_data
    run = tmp_path / "run"
    shutil.copytree(trained.folder, run)
    recipe = load_recipe(run / "recipe.toml")[0]
    valid = PairFilesConfig(source=str(small["source"]), target=str(small["target"]))
    (run / "recipe.toml").write_text(dump_recipe(recipe.with_fields("data", valid=valid)))
    checkup = examine.open_checkup(run, ["loss"], 1.0, with_data=True)
    assert sum(len(batch.sample_ids) for batch in checkup.batches) == 9 and checkup.training_tokens is None


@pytest.mark.long
@pytest.mark.parametrize("run", ["classifying", "filling", "seeing", "tagging", "instruction_tuned", "hearing"])
def test_healthy_runs_of_every_task_have_no_problem(run: str, transom: Call, request: pytest.FixtureRequest) -> None:
    value = transom("doctor", request.getfixturevalue(run), "--checks", FAST, "--seconds", "600", "--json").json
    assert not [each for each in value["checks"] if each["verdict"] == "problem"] and value["verdicts"]["ok"] >= 7
    assert next(each for each in value["checks"] if each["name"] == "loss")["value"] is not None


def test_what_is_wrong_is_told_in_one_line(transom: Call, trained: Trained, tmp_path: Path) -> None:
    assert "checks: expected finite, causality, " in transom("doctor", trained.folder, "--checks", "cashe").error
    assert "expected a run folder" in transom("doctor", tmp_path).error
    assert complete("transom doct") == ["doctor"] and "--no-data" in complete("transom doctor runs/mine --no")
