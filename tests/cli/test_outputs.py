"""No command writes onto a run's own files or onto what it reads, whatever name or link leads there."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, Call, Trained, sets
from transom.checkpoints.run_files import CHECKPOINTS, FILES, LOCK
from transom.cli.commands import all_commands
from transom.errors import ConfigError
from transom.tasks.train import train

OWN = [*FILES, LOCK, CHECKPOINTS, f"{CHECKPOINTS}/step-10/model.safetensors", f"{CHECKPOINTS}/new"]
"""What a run owns; some of it is not there."""

Command = Callable[[Trained, Path, Path], list[str | Path]]

COMMANDS_THAT_WRITE: dict[str, Command] = {
    "translate": lambda run, input_file, out: ["translate", run.folder, "--input", input_file, "--output", out],
    "evaluate": lambda run, input_file, out: ["evaluate", run.folder, "--source", input_file, "--target", run.target, "--output", out],
    "evaluate's target": lambda run, input_file, out: [
        *("evaluate", run.folder, "--source", run.source, "--target", input_file, "--output", out)
    ],
    "embed": lambda run, input_file, out: ["embed", run.folder, "--input", input_file, "--output", out],
    "compare-attention": lambda run, input_file, out: ["compare-attention", run.folder, "--input", input_file, "--out", out],
    "trace": lambda run, input_file, out: ["trace", run.folder, "--input", input_file, "--out", out],
    "ablate": lambda run, input_file, out: ["ablate", run.folder, "--input", input_file, "--part", "cross", "--out", out],
    "plot": lambda run, input_file, out: ["plot", "heads", run.folder, "--input", input_file, "--out", out],
    "plan": lambda run, input_file, out: ["plan", input_file, "--plot", out],
    "profile": lambda run, input_file, out: ["profile", input_file, "--trace", out],
    "rehearse": lambda run, input_file, out: ["rehearse", input_file, "--mesh", "data=2", "--plot", out],
    "find-lr": lambda run, input_file, out: ["find-lr", input_file, "--out", out],
    "lens tune": lambda run, input_file, out: ["lens", "tune", run.folder, "--steps", "1", "--out", out],
    "explain": lambda run, input_file, out: ["explain", run.folder, "--input", input_file, "--format", "text", "--out", out],
    "translate's steps": lambda run, input_file, out: [
        *("translate", run.folder, "--input", input_file, "--trace", "steps", "--trace-file", out)
    ],
    "tokenizer train": lambda run, input_file, out: [
        *("tokenizer", "train", "translation", "--source", input_file, "--target", run.target, "--out", out)
    ],
    "tokenizer train's folder": lambda run, input_file, out: ["tokenizer", "train", "text-bpe", "--text", input_file.parent, "--out", out],
    "tokenizer train's recipe": lambda run, input_file, out: [
        *("tokenizer", "train", input_file, "--source", run.source, "--target", run.target, "--out", out)
    ],
    "recipes patterns": lambda run, input_file, out: ["recipes", "patterns", input_file, "--out", out],
}
"""How each is called with an input and an output."""

READ_RUNS_ONLY = ("lens tune",)
"""Commands whose only input is a run; test_lens.py has the data of the run."""


def content_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def given_file(trained: Trained, tmp_path: Path) -> Path:
    """Give a file that is a text and a recipe, alone in a folder."""
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "given.toml"
    file.write_text('task = "translation" # is read as text, too\n')
    return file


@pytest.mark.parametrize("command", [each for each in COMMANDS_THAT_WRITE if each not in READ_RUNS_ONLY])
def test_an_input_is_not_written_onto(command: str, trained: Trained, given_file: Path, transom: Call, tmp_path: Path) -> None:
    (tmp_path / "in" / "hard").hardlink_to(given_file)
    (tmp_path / "link").symlink_to(given_file)
    (tmp_path / "folder").symlink_to(tmp_path / "in")
    names = [given_file, tmp_path / "in" / ".." / "in" / "given.toml", tmp_path / "in" / "hard", tmp_path / "link"]
    before = content_of(tmp_path) | content_of(trained.folder)
    for out in [*names, tmp_path / "folder" / "given.toml"]:
        error = transom(*COMMANDS_THAT_WRITE[command](trained, given_file, out)).error
        assert str(out) in error and "expected a new output file, found the input" in error
    assert before == content_of(tmp_path) | content_of(trained.folder), "no reading was noted either"


@pytest.mark.parametrize("command", COMMANDS_THAT_WRITE)
def test_a_runs_own_file_is_not_written_onto(command: str, trained: Trained, given_file: Path, transom: Call, tmp_path: Path) -> None:
    before = content_of(trained.folder)
    (tmp_path / "run").symlink_to(trained.folder)
    for out in (trained.folder / name for name in OWN):
        assert "found a file of the run" in transom(*COMMANDS_THAT_WRITE[command](trained, given_file, out)).error
    for out in (tmp_path / "run" / "model.safetensors", trained.folder / CHECKPOINTS / ".." / "config.json"):
        assert "found a file of the run" in transom(*COMMANDS_THAT_WRITE[command](trained, given_file, out)).error
    assert before == content_of(trained.folder)


def test_a_recipe_is_not_copied_into_a_run(trained: Trained, transom: Call) -> None:
    error = transom("recipes", "copy", "copy", trained.folder / "base.safetensors").error
    assert "found a file of the run" in error and not (trained.folder / "base.safetensors").exists()


def test_a_hard_link_to_a_runs_file_is_one_of_them(trained: Trained, transom: Call, tmp_path: Path) -> None:
    (tmp_path / "hard").hardlink_to(trained.folder / "model.safetensors")
    error = transom("translate", trained.folder, "ab", "--output", tmp_path / "hard").error
    assert f"found the input {trained.folder / 'model.safetensors'}" in error


def test_other_places_are_written(trained: Trained, given_file: Path, transom: Call, tmp_path: Path) -> None:
    for out in (trained.folder / "translations.txt", tmp_path / "in" / "out.txt", tmp_path / "config.json"):
        for _ in range(2):
            assert transom("translate", trained.folder, "--input", given_file, "--output", out).code == 0
        assert out.read_text().count("\n") == 1
        out.unlink()


def test_every_output_option_is_among_them(transom: Call) -> None:
    subcommands = {"tokenizer": ["train", "show"], "recipes": ["list", "show", "copy", "patterns"], "lens": ["logit", "tune"]}
    writing = {
        " ".join(words)
        for command in all_commands()
        for words in [[command, subcommand] for subcommand in subcommands.get(command, [])] or [[command]]
        if re.search(r"--(out|output|plot|trace)\s+(FILE|DIR)", transom(*words, "--help").out)
    }
    assert writing == {command.split("'")[0] for command in COMMANDS_THAT_WRITE} | {
        "train",
        "average",
        "demo",
        "compare-components",
        "sweep",
    }


def test_a_run_does_not_start_from_itself(trained: Trained, tmp_path: Path, transom: Call) -> None:
    before = content_of(trained.folder)
    (tmp_path / "link").symlink_to(trained.folder)
    for out in (trained.folder, tmp_path / "link"):
        error = transom(*trained.command, "--init-from", trained.folder, "--out", out).error
        assert "expected a new run folder, found the run of training.init_from" in error
        with pytest.raises(ConfigError, match=r"expected a new run folder, found the run of training\.init_from"):
            train("copy", out, [f"training.init_from={trained.folder}"], overwrite=True)
    assert before == content_of(trained.folder)


def test_a_run_does_not_learn_from_its_own_files(trained: Trained, transom: Call, tmp_path: Path) -> None:
    before = content_of(trained.folder)
    files = ("--source", trained.folder / "README.md", "--target", trained.folder / "README.md")
    error = transom("train", "translation", *files, "--out", trained.folder, *sets(*TINY)).error
    assert "found the run that contains the data file" in error
    with pytest.raises(ConfigError, match="found the run that contains the data file"):
        readme = trained.folder / "README.md"
        train("text-bpe", trained.folder, [f'data.train={{ files = "{readme}" }}'], overwrite=True)
    assert before == content_of(trained.folder)
