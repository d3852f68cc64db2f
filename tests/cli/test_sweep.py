"""``transom sweep``: configurations are dropped by their validation metric, and an interrupted sweep equals an uninterrupted one."""

import json
import math
import os
import shutil
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call, sets
from transom.checkpoints.run_folder import RunFolder
from transom.cli.sweep import _format
from transom.config.recipe import load_recipe
from transom.tasks import run_pages
from transom.tasks import sweep as module
from transom.tasks.sweep import Sweep
from transom.training.metrics_window import TIMED

TINY = (
    *("model.d_model=16", "model.n_heads=2", "model.d_ff=16", "model.n_encoder_layers=1", "model.n_decoder_layers=1"),
    *("data.generate.n_train=100", "data.generate.n_valid=10", "data.generate.n_test=10", "training.precision=fp32"),
)
OVER = ["training.learning_rate=1e-4..1e-2", "model.dropout=0.0,0.1"]
COMMAND = ["sweep", "copy", *(word for each in OVER for word in ("--over", each)), *sets(*TINY), "--runs", "4", "--steps", "9"]

ONE = ["sweep", "copy", "--over", "model.dropout=0.1,0.2", *sets(*TINY), "--runs", "1", "--steps", "2"]
"""One configuration, and thus one rung."""


def untimed(value: Any) -> Any:
    """Return results without what depends on the machine and the folder."""
    if isinstance(value, dict):
        return {key: untimed(each) for key, each in value.items() if key not in TIMED and key != "folder"}
    return [untimed(each) for each in value] if isinstance(value, list) else value


def metrics_of(folder: Path) -> dict[str, Any]:
    """Return the metrics of all runs in a folder."""
    return {
        path.parent.relative_to(folder).as_posix(): untimed(RunFolder.open(path.parent).metrics.read())
        for path in folder.rglob("metrics.jsonl")
    }


@pytest.mark.long
def test_the_best_configuration_gets_all_steps_and_becomes_a_recipe(transom: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = transom(*COMMAND, "--seeds", "2", "--out", out)
    assert told.code == 0 and "4 configurations with 2 seeds each, in 3 rungs: 4 to step 2, 2 to step 4, 1 to step 9" in told.err
    header, first, *_ = (line.split() for line in told.out.splitlines())
    assert header == ["rank", "training.learning_rate", "model.dropout", "loss", "std", "steps", "seconds", "folder"]
    value = json.loads((out / "results.json").read_text())
    best, second, *others = value["configurations"]
    assert [row["steps"] for row in value["configurations"]] == [9, 4, 2, 2] and first[0] == "1" and first[-1] == best["folder"]
    assert others[0]["metric"]["mean"] <= others[1]["metric"]["mean"]
    for row in value["configurations"]:
        for seed in (1, 2):
            run = RunFolder.open(out / row["folder"] / f"seed-{seed}")
            lines = [line for line in run.metrics.read() if line["kind"] == "validation"]
            assert max(run.checkpoints.steps()) == row["steps"] and lines[-1]["step"] == row["steps"]
            assert row["metric"]["seeds"][seed - 1] == min(line["loss"] for line in lines)
        assert row["metric"]["mean"] == pytest.approx(sum(row["metric"]["seeds"]) / 2)
    recipe = tomllib.loads((out / "best.toml").read_text())
    assert [str(recipe["training"]["learning_rate"]), str(recipe["model"]["dropout"])] == list(best["values"].values())
    original = load_recipe("copy", TINY)[0].training
    trained = load_recipe(out / "best.toml")[0].training
    assert trained == original.model_copy(update={"learning_rate": trained.learning_rate}), "its own steps, warmup and intervals"
    picture = (out / "sweep.svg").read_text()
    assert "training.learning_rate" in picture and "9 steps" in picture and (out / "sweep.csv").read_text().count("\n") == 8
    settings = " ".join(f"--set {each}" for each in value["best"])
    assert f"best values: {settings}" in told.out and second["rung"] == 2


@pytest.mark.long
def test_a_paused_run_has_the_schedule_of_the_whole_run(transom: Call, tmp_path: Path) -> None:
    value = transom(*COMMAND, "--out", tmp_path / "out", "--json").json
    best = value["configurations"][0]
    run = tmp_path / "out" / best["folder"] / "seed-1"
    straight = [word for word in sets(*TINY) if word] + sets(*value["best"])
    recipe = load_recipe(run / "recipe.toml")[0].training
    fields = ("max_steps", "validate_every", "checkpoint_every", "log_every", "seed")
    straight += sets(
        *(f"training.{name}={getattr(recipe, name)}" for name in fields), "training.patience=none", "training.max_minutes=none"
    )
    straight += sets(f"training.schedule.warmup_steps={recipe.schedule.warmup_steps}")
    assert transom("train", "copy", *straight, "--out", tmp_path / "straight", "--json").code == 0
    assert untimed(RunFolder.open(run).metrics.read()) == untimed(RunFolder.open(tmp_path / "straight").metrics.read())
    assert (run / "model.safetensors").read_bytes() == (tmp_path / "straight" / "model.safetensors").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("kind", ["signal", "kill"])
def test_an_interrupted_sweep_equals_an_uninterrupted_one(
    kind: str, transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = transom(*COMMAND, "--out", tmp_path / "whole", "--json").json
    train, n_calls = module.run_training, 0

    def interrupted(*arguments: Any, **options: Any) -> Any:
        """Train; in the fourth and the sixth run send a signal in the first step, or fail in it as if killed."""
        nonlocal n_calls
        n_calls += 1
        if n_calls in (4, 6):
            recipe, base, folder, resume, overwrite, callbacks = arguments

            def stop(event: Any) -> None:
                if type(event).__name__ == "StepFinished":
                    if kind == "kill":
                        raise KeyboardInterrupt
                    os.kill(os.getpid(), signal.SIGINT)

            return train(recipe, base, folder, resume, overwrite, [*callbacks, stop], **options)
        return train(*arguments, **options)

    monkeypatch.setattr(module, "run_training", interrupted)
    for _ in range(2):
        stopped = transom(*COMMAND, "--out", tmp_path / "parts")
        assert stopped.code == 130
        if kind == "signal":
            assert "repeat the command to continue" in stopped.out
    n_before = n_calls
    assert untimed(transom(*COMMAND, "--out", tmp_path / "parts", "--json").json) == untimed(whole)
    assert metrics_of(tmp_path / "parts") == metrics_of(tmp_path / "whole")
    assert n_before == 6 and n_calls == 9, "of seven parts two were begun twice"
    assert untimed(transom(*COMMAND, "--out", tmp_path / "parts", "--json").json) == untimed(whole) and n_calls == 9, "nothing is repeated"


def test_a_signal_while_a_report_is_written_ends_the_sweep(transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = run_pages.write_run_pages
    monkeypatch.setattr(run_pages, "write_run_pages", lambda *arguments: (os.kill(os.getpid(), signal.SIGTERM), write(*arguments))[1])
    stopped = transom(*ONE, "--seeds", "2", "--out", tmp_path / "out")
    assert stopped.code == 143 and "repeat the command to continue" in stopped.out
    assert [path.name for path in (tmp_path / "out" / "config-01").iterdir()] == ["seed-1"]


@pytest.mark.long
def test_a_configuration_that_diverges_is_the_worst_and_does_not_end_the_sweep(transom: Call, tmp_path: Path) -> None:
    command = ["sweep", "copy", "--over", "training.learning_rate=1e30,1e-3", *sets(*TINY, "training.max_grad_norm=none"), "--runs", "2"]
    command += ["--steps", "60", "--out", str(tmp_path / "out")]
    told = transom(*command)
    assert told.code == 0 and "diverged: config-01/seed-1: expected a finite" in told.out and "2" in told.out
    value = transom(*command, "--json").json
    assert [row["values"]["training.learning_rate"] for row in value["configurations"]] == ["1e-3", "1e30"]
    assert value["configurations"][1]["metric"]["mean"] is None and value["best"] == ["training.learning_rate=1e-3"]
    none = transom(*[word.replace("1e30,1e-3", "1e30,1e29") for word in command[:-1]], tmp_path / "none")
    assert none.code == 2 and "diverged: config-01/seed-1" in none.out and "found that all 2 diverged; search over lower" in none.err
    assert (tmp_path / "none" / "results.json").exists() and not (tmp_path / "none" / "best.toml").exists()


@pytest.mark.long
def test_test_data_play_no_part(transom: Call, tmp_path: Path) -> None:
    for n_test in (10, 30):
        assert transom(*ONE, "--set", f"data.generate.n_test={n_test}", "--out", tmp_path / str(n_test)).code == 0
    metrics = [metrics_of(tmp_path / folder) for folder in ("10", "30")]
    assert len(metrics[0]) == 1 and metrics[0] == metrics[1]
    assert all("test" not in line["kind"] for lines in metrics[0].values() for line in lines)


def test_a_metric_of_which_higher_is_better_keeps_the_highest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    search = Sweep("copy", [*TINY, "training.best_checkpoint_metric=bleu"], ["model.dropout=0.0,0.1,0.2,0.3"], 4, 1, 8, tmp_path / "out")
    monkeypatch.setattr(Sweep, "select_by", "bleu")
    monkeypatch.setattr(Sweep, "_continue_run", lambda *arguments: None)
    monkeypatch.setattr(Sweep, "_metric", lambda self, folder, target: {1: 5.0, 2: 7.0, 3: math.nan, 4: 6.0}[int(folder.parent.name[-2:])])
    assert search.train(lambda done, total: None) is None
    assert [row.configuration.number for row in search.rows] == [1, 3, 0, 2] and [row.steps for row in search.rows] == [8, 4, 2, 2]


def test_other_commands_and_other_folders_are_refused(transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sweep, "_continue_run", lambda *arguments: None)
    monkeypatch.setattr(Sweep, "_metric", lambda *arguments: 1.0)
    monkeypatch.setattr(Sweep, "select_by", "loss")
    out = tmp_path / "out"
    Sweep("copy", TINY, OVER, 4, 1, 9, out).train(lambda done, total: None)
    (out / "config-01" / "seed-1" / "checkpoints" / "step-2").mkdir(parents=True)
    over = "--over training.learning_rate=1e-4..1e-2 model.dropout=0.0,0.1"
    for change, difference in (
        (["--seeds", "2"], "--seeds 1, found --seeds 2"),
        (["--steps", "8"], "--steps 9, found --steps 8"),
        (["--over", "model.d_ff=16,32"], f"{over}, found {over} model.d_ff=16,32"),
        (["--set", "training.seed=2"], "training.seed = 1, found training.seed = 2"),
        (["--set", "training.patience=3"], "training.patience = none, found training.patience = 3"),
    ):
        told = transom(*COMMAND, *change, "--out", out)
        assert f"{out}: expected the command of the sweep in this folder with {difference}; repeat that command" in told.error
    for damaged in ("{", '{"format_version": 3}', '{"format_version": 3, "command": {}, "diverged": {"config-01/seed-1": 3}}'):
        (out / "sweep.json").write_text(damaged)
        assert f"give another --out, or delete {out} to start anew" in transom(*COMMAND, "--out", out).error
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for place in (tmp_path / "other", tmp_path / "other" / "file"):
        assert "expected a new or empty folder, or a sweep to continue" in transom(*COMMAND, "--out", place).error


def test_a_sweep_that_failed_before_a_run_was_trained_leaves_its_folder_free(transom: Call, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "training.batch_tokens: expected at least" in transom(*ONE, "--out", out, *sets("training.batch_tokens=1")).error
    run = RunFolder.create(out / "config-01" / "seed-1")
    run.write("recipe.toml", b"half of a run that another command has begun")
    assert "another training run is writing to this folder" in transom(*ONE, "--out", out).error
    run.close()
    assert transom(*ONE, "--out", out, "--json").code == 0


def test_a_damaged_history_is_an_error_and_no_divergence(transom: Call, tmp_path: Path) -> None:
    done = transom(*ONE, "--out", tmp_path)
    assert "1 configuration with one seed, in 1 rung: 1 to step 2" in done.err and "nothing was trained" not in done.err
    run, before = tmp_path / "config-01" / "seed-1", (tmp_path / "sweep.json").read_bytes()
    again = transom(*ONE, "--out", tmp_path)
    assert again.out == done.out and f"nothing was trained: all runs in {tmp_path} were finished before" in again.err
    for text in ('{"kind": "tr', None):
        (run / "metrics.jsonl").unlink() if text is None else (run / "metrics.jsonl").write_text(text)
        error = transom(*ONE, "--out", tmp_path).error
        assert f"{run / 'metrics.jsonl'}: expected the validation at step 2, found none; delete folder {run} to train it again" in error
        assert (tmp_path / "sweep.json").read_bytes() == before
    shutil.rmtree(run)
    value = transom(*ONE, "--out", tmp_path, "--json").json
    assert f"{value['configurations'][0]['metric']['mean']:.4f}" in done.out and value["configurations"][0]["metric"]["std"] is None


def test_a_huge_metric_has_significant_digits() -> None:
    assert [_format(value, 4) for value in (2.80004, 99999.0, 1.2345678e30)] == ["2.8000", "99999.0000", "1.2346e+30"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["copy", "--over", "model.dropout=0,0.1", "--runs", "2", "--steps", "1"],
            "--steps: expected at least 2 steps for the 2 rungs of 2",
        ),
        (["copy", "--over", "model.n_heads=2,3"], "--over model.n_heads=2,3: model: d_model 64 is not a multiple of n_heads 3"),
        (["copy", "--over", "model.dropuot=0,0.1"], "--over model.dropuot=0,0.1: unknown field model.dropuot; did you mean model.dropout?"),
        (["copy"], "missing option '--over'"),
        (["copy", "--over", "model.dropout=0,0.1", "--seeds", "100000000000"], "expected a number less than or equal to 1000"),
        (["copi", "--over", "model.dropout=0,0.1"], "found 'copi'; did you mean copy?"),
        (["copy", "--over", "training.validate_every=1,2"], "expected a field of model or training, found one that all runs share"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments: list[str], message: str, transom: Call, tmp_path: Path) -> None:
    assert message in transom("sweep", *arguments, "--out", tmp_path / "out").error
    assert not (tmp_path / "out").exists()


def test_a_list_with_few_combinations_and_a_long_warmup_are_said(tmp_path: Path) -> None:
    notes = Sweep("copy", TINY, ["model.dropout=0.0,0.1"], 8, 1, 400, tmp_path).notes
    assert "2 configurations with one seed, in 2 rungs: 2 to step 200, 1 to step 400" in notes
    assert any("only 2 of 8 configurations differ" in note for note in notes)
    slow = Sweep("copy", [*TINY, "training.schedule.warmup_steps=1500"], ["model.dropout=0.0,0.1"], 2, 1, 400, tmp_path).notes
    assert any("the first rung ends within the 400 steps of warmup" in note for note in slow)
