"""Training from the command line: folders, seeds, signals, resuming."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import transom as package
from tests.cli.conftest import TINY, Call, Trained, sets, write_pairs
from transom.cli import train as command
from transom.config.recipe import load_recipe
from transom.errors import ConfigError, DivergedError
from transom.tasks import run_pages
from transom.tasks.train import GracefulStop
from transom.training.events import Event, StepFinished


def test_a_run_folder_holds_what_the_design_says(trained: Trained) -> None:
    names = {path.name for path in trained.folder.iterdir()}
    assert {
        "recipe.toml",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "metrics.jsonl",
        "report.html",
        "README.md",
        "checkpoints",
    } <= names
    steps = [json.loads(line)["step"] for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps[-1] == 10


def test_an_out_that_holds_a_run_is_refused(trained: Trained, transom: Call) -> None:
    before = (trained.folder / "model.safetensors").read_bytes()
    assert "add --resume to continue that run, or give another --out" in transom(*trained.command, "--out", trained.folder).error
    assert (trained.folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("yes", [True, False])
def test_at_a_terminal_it_is_asked(yes: bool, trained: Trained, transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    assert transom(*trained.command, "--set", "training.max_steps=5", "--out", out, "--json").code == 0
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(command.typer, "confirm", lambda text, err: asked.append(text) or yes)
    outcome = transom(*trained.command, "--out", out)
    assert len(asked) == 1
    assert (outcome.code, "step 10" in outcome.out) == ((0, True) if yes else (2, False))


def test_resume_goes_on_and_a_folder_without_a_run_starts_anew(trained: Trained, transom: Call, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [*trained.command, "--out", out, "--resume", "--json"]
    assert transom(*command, "--set", "training.max_steps=5").json["step"] == 5
    assert transom(*command).json["step"] == 10
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (out, trained.folder))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours), "as if never stopped"


def test_progress_is_lines_and_json_is_alone(trained: Trained, transom: Call, tmp_path: Path) -> None:
    outcome = transom(*trained.command, "--out", tmp_path / "a")
    assert outcome.code == 0
    assert "reading the data ..." in outcome.err
    assert "step 1/10  epoch 0." in outcome.err and "of peak" in outcome.err and "left" in outcome.err
    assert "step 10: validation loss" in outcome.err
    assert f"report in {tmp_path / 'a' / 'report.html'}" in outcome.out
    quiet = transom(*trained.command, "--out", tmp_path / "b", "--json")
    assert quiet.err == ""
    assert quiet.json["reason"] == "max_steps"
    assert {"step", "loss", "perplexity", "bleu", "chrf"} <= set(quiet.json["best"])


@pytest.mark.long
def test_seeds_give_mean_and_spread_in_one_table(trained: Trained, transom: Call, tmp_path: Path) -> None:
    outcome = transom(*trained.command, "--out", tmp_path, "--seeds", "2")
    rows = {line.split()[0]: line.split() for line in outcome.out.splitlines()}
    losses = [float(rows[seed][1]) for seed in ("1", "2")]
    assert losses[0] != losses[1]
    assert float(rows["mean"][1]) == pytest.approx(sum(losses) / 2, abs=1e-4)
    assert float(rows["std"][1]) == pytest.approx(abs(losses[0] - losses[1]) / 2**0.5, abs=2e-4)
    again = transom(*trained.command, "--out", tmp_path, "--seeds", "2", "--resume", "--json").json
    assert [run["folder"] for run in again["runs"]] == [str(tmp_path / "seed-1"), str(tmp_path / "seed-2")]
    assert again["mean"]["loss"] == pytest.approx(sum(losses) / 2, abs=1e-4)


@pytest.mark.parametrize(
    ("number", "code", "processes"),
    [
        pytest.param(signal.SIGINT, 130, 1, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, 143, 1, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, 130, 2, marks=pytest.mark.long),
    ],
)
def test_a_signal_finishes_the_step_and_saves(
    number: signal.Signals, code: int, processes: int, trained: Trained, transom: Call, tmp_path: Path
) -> None:
    rare = ("training.checkpoint_every=100000", "training.validate_every=100000")
    endless = [*trained.command, *sets("training.max_steps=100000", *rare, f"parallel.data={processes}")]
    command = [sys.executable, "-m", "transom", *endless, "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0) as process:
        assert process.stdout is not None and process.stderr is not None
        assert any(line.startswith("step 1/100,000") for line in process.stderr)
        os.killpg(process.pid, number)  # as Ctrl-C at a terminal: it reaches all processes of the run
        told = process.stdout.read()
        assert "Traceback" not in process.stderr.read()
    assert process.returncode == code
    assert "repeat the command with --resume to continue" in told
    (checkpoint,) = (tmp_path / "run" / "checkpoints").glob("step-*")
    step = int(checkpoint.name.removeprefix("step-"))
    resumed = transom(*endless, "--out", tmp_path / "run", "--resume", "--json", "--set", f"training.max_steps={step + 3}").json
    assert (resumed["step"], resumed["reason"]) == (step + 3, "max_steps")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_report_is_written_ends_the_command_after_it(
    number: int, code: int, trained: Trained, transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = run_pages.write_run_pages
    monkeypatch.setattr(run_pages, "write_run_pages", lambda *arguments: (os.kill(os.getpid(), number), write(*arguments))[1])
    several = transom(*trained.command, "--out", tmp_path / "several", "--seeds", "2", *sets("training.max_steps=1"))
    assert several.code == code and "stopped before seed 2; repeat the command with --resume to continue" in several.out
    assert not (tmp_path / "several" / "seed-2").exists() and (tmp_path / "several" / "seed-1" / "report.html").exists()
    if number == signal.SIGTERM:
        last = transom(*trained.command, "--out", tmp_path / "last", "--seeds", "1", *sets("training.max_steps=1"))
        assert last.code == code and "mean" in last.out and "stopped" not in last.out


def test_a_signal_in_a_step_that_diverges_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), GracefulStop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested()
        raise DivergedError("expected finite losses")


def test_the_generic_recipe_splits_validation_off_and_says_so(transom: Call, tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path, 150)
    files = ["--source", source, "--target", target]
    outcome = transom(
        "train", "translation", *files, "--out", tmp_path / "run", *sets(*TINY, "training.max_steps=2", "data.root=elsewhere")
    )
    assert outcome.code == 0
    assert "held out" in outcome.err


def test_a_test_file_that_the_data_report_reads_is_in_the_ledger(trained: Trained, transom: Call, tmp_path: Path) -> None:
    test = f'data.test={{ source = "{trained.source}", target = "{trained.target}" }}'
    command = ("train", "translation", "--source", trained.source, "--target", trained.target, "--valid-source", trained.source)
    command = (*command, "--valid-target", trained.target, "--out", tmp_path / "run", "--json", *sets(*TINY, "training.max_steps=1", test))
    assert transom(*command).code == 0
    entries = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert [(entry["command"], entry["file"]) for entry in entries] == [("train", str(trained.source)), ("train", str(trained.target))]


def test_a_validation_sentence_that_is_translated_in_pieces_does_not_end_the_run(transom: Call, tmp_path: Path) -> None:
    source, target = write_pairs(tmp_path, 40)
    for path, long in ((source, "ab ba. " * 9), (target, ".ab ba " * 9)):
        (tmp_path / f"valid.{path.suffix[1:]}").write_text(f"{long}\n{path.read_text()}")
    valid = ["--valid-source", tmp_path / "valid.source", "--valid-target", tmp_path / "valid.target"]
    short = sets(*TINY, "training.max_steps=2", "model.max_seq_len=24")
    outcome = transom("train", "translation", "--source", source, "--target", target, *valid, "--out", tmp_path / "run", *short)
    assert outcome.code == 0
    assert "valid: dropped (longer than 24 tokens): 1 of 41 pairs, line 1" in outcome.err
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "README.md").exists()


def test_tensorboard_is_an_extra(trained: Trained, transom: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [*trained.command, "--json", "--set", "training.tensorboard=true", "--out"]
    assert transom(*wanted, tmp_path / "with").code == 0
    assert list((tmp_path / "with" / "tensorboard").glob("events.out.tfevents.*"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert "pip install 'transom[log]'" in transom(*wanted, tmp_path / "without").error


def test_from_python(trained: Trained, tmp_path: Path) -> None:
    files = f'data.train={{ source = "{trained.source}", target = "{trained.target}" }}'
    seen: list[Event] = []
    result = package.train("translation", tmp_path / "run", [files, *TINY, "training.max_steps=3"], callbacks=[seen.append])
    assert (result.step, result.reason, result.exit_code) == (3, "max_steps", 0)
    assert sum(isinstance(event, StepFinished) for event in seen) == 3
    with pytest.raises(ConfigError, match="holds a run"):
        package.train("translation", tmp_path / "run", [files, *TINY])
    assert len(package.load(result.folder).translate(["ab", "", "ba"], beam_size=1)) == 3
    with pytest.raises(AttributeError, match="'transom' has no attribute 'tarin'"):
        package.tarin  # noqa: B018


@pytest.mark.long
def test_what_is_worse_than_guessing_is_a_problem(trained: Trained, transom: Call, tmp_path: Path) -> None:
    broken = [*trained.command, *sets("training.learning_rate=30.0", "training.max_steps=2", "training.schedule.warmup_steps=1")]
    outcome = transom(*broken, "--out", tmp_path / "run")
    assert "warning: validation loss " in outcome.out and "is worse than always answering the token frequencies" in outcome.out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "is worse than always answering" in page and "No problem was found" not in page
    assert "is worse than always answering" in (tmp_path / "run" / "README.md").read_text()
    learning = sets("training.max_steps=200", "training.validate_every=200", "training.learning_rate=0.01", "training.average=none")
    good = transom(*trained.command, *learning, "--out", tmp_path / "good", "--json").json
    assert good["problems"] == [] and "worse than" not in (tmp_path / "good" / "report.html").read_text()


@pytest.mark.long
def test_the_kept_weights_are_named(trained: Trained, transom: Call, tmp_path: Path) -> None:
    outcome = transom(*trained.command, *sets("training.average=ema"), "--out", tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    best = [record for record in records if record.get("best")][-1]
    assert f", {best['weights']} weights" in outcome.out and f", {best['weights']} weights" in outcome.err
    for name in ("report.html", "README.md"):
        assert f"{best['weights']} weights" in (tmp_path / "run" / name).read_text()
    plain = transom(*trained.command, *sets("training.average=none"), "--out", tmp_path / "plain", "--json").json
    assert "weights" not in plain


def test_a_size_is_chosen_reported_and_kept(trained: Trained, transom: Call, tmp_path: Path) -> None:
    out = tmp_path / "large"
    outcome = transom(*trained.command, "--size", "large", "--out", out, "--set", "training.max_steps=5")
    assert outcome.code == 0
    assert "size large: the model keeps its size, since no field that is left to choose fits another" in " ".join(outcome.err.split())
    found = transom(*trained.command, "--size", "large", "--resume", "--out", out, "--set", "training.max_steps=6")
    assert found.code == 0, "the same command resumes the run"
    assert "expected --size with NAME_OR_FILE" in transom("train", "--resume", "--out", out, "--size", "small").error
    assert (
        "expected --size with a new model"
        in transom(*trained.command, "--size", "small", "--init-from", out, "--out", tmp_path / "b").error
    )


def test_a_size_is_that_of_the_recipe(transom: Call, tmp_path: Path) -> None:
    few = sets(
        "data.generate.n_train=200",
        "data.generate.n_valid=100",
        "data.generate.n_test=100",
        "training.max_steps=2",
        "training.precision=fp32",
    )
    outcome = transom("train", "copy", "--size", "small", "--out", tmp_path / "run", *few)
    assert outcome.code == 0
    note = "d_model 32 (base 64), n_heads 2 (base 4), d_ff 64 (base 128), n_encoder_layers 1 (base 2), n_decoder_layers 1 (base 2)"
    shown = " ".join(outcome.err.split())
    assert f"size small: {note} " in shown and re.search(r" \d[\d,]+ parameters; ", shown)
    assert load_recipe(tmp_path / "run" / "recipe.toml")[0].model.d_model == 32
    misfit = transom("train", "copy", "--size", "small", "--out", tmp_path / "no", *few, "--set", "model.d_model=50")
    assert "--set model.d_model=50" in misfit.error and "50 is not a multiple of n_heads 4" in misfit.error
