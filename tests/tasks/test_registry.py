"""Tasks are discovered by their folders; a plugin task is supported like them: options, help, errors, training, loading, commands."""

import ast
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer import Context

from tests.size import ROOT
from transom.cli.commands import command_line
from transom.config import task_options
from transom.config.recipe import TextRecipe, load_recipe
from transom.config.task_options import format_flags
from transom.config.task_registry import list_task_help, recipes_by_task, register_task
from transom.errors import ConfigError
from transom.tasks.classification.schema import ClassificationRecipe
from transom.tasks.load import wrong_task_error
from transom.tasks.task import TaskClass, TrainsTokenizers, task_class


def test_each_folder_is_a_task_of_two_files_and_what_it_alone_needs() -> None:
    folders = {path.parent for path in (ROOT / "transom" / "tasks").glob("*/*.py")}
    assert all({path.name for path in folder.glob("*.py")} >= {"__init__.py", "schema.py", "task.py"} for folder in folders)
    assert {recipe.__module__.split(".")[2] for recipe in recipes_by_task().values()} == {folder.name for folder in folders}


def test_every_task_has_what_is_asked_of_one() -> None:
    for name, recipe in recipes_by_task().items():
        task = task_class(recipe)
        assert isinstance(task, TaskClass) and isinstance(task, TrainsTokenizers) == issubclass(recipe, TextRecipe), name
        assert recipe.COMMAND in task.COMMANDS or callable(getattr(task.PREDICTOR, recipe.COMMAND)), name


def test_what_the_command_line_tells_is_what_the_schemas_say() -> None:
    assert list_task_help() == [recipe.HELP for recipe in recipes_by_task().values()]
    for recipe in recipes_by_task().values():
        assert format_flags(recipe.HELP.options) == format_flags(recipe.model_fields["data"].annotation.OPTIONS)  # type: ignore[union-attr]
    every = dict.fromkeys(option for told in list_task_help() for option in told.options)
    assert len({option.flag for option in every}) == len(every), "an option of several tasks is one and the same"
    assert {option.needs for option in every} <= {"", *(option.flag for option in every)}


def test_help_is_told_by_literals_and_the_options_own_names() -> None:
    for path in (ROOT / "transom" / "tasks").glob("*/schema.py"):
        (about,) = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
        names = {node.id for node in ast.walk(about.value) if isinstance(node, ast.Name)}
        assert names <= vars(task_options).keys()


def test_a_run_that_is_not_evaluated_is_sent_to_a_command_that_exists() -> None:
    commands = {
        name: str(wrong_task_error("my runs/a", "evaluate", recipe)).split("; use ")[1] for name, recipe in recipes_by_task().items()
    }
    classify = "transom classify 'my runs/a' --labeled-data PATH"
    assert commands["classification"] == commands["image-classification"] == commands["audio-classification"] == classify
    assert (
        commands["language"] == "transom score 'my runs/a' --text PATH" and commands["tagging"] == "transom tag 'my runs/a' --tagged FILE"
    )
    assert commands["embedding"] == commands["masked"] == "transom status 'my runs/a', which prints its validation metrics"
    group = command_line()
    for command in commands.values():
        _, name, run, *options = shlex.split(command.split(",")[0])
        known = {flag for option in group.get_command(Context(group), name).params for flag in option.opts}
        assert run == "my runs/a" and {option for option in options if option.startswith("--")} <= known


def test_a_name_is_given_once() -> None:
    assert register_task(ClassificationRecipe) is ClassificationRecipe

    class Other(ClassificationRecipe):
        """Another task of the same name."""

    with pytest.raises(ConfigError, match="task 'classification' is registered by"):
        register_task(Other)


SCRIPT = """
import contextlib, io, json, sys
import tests.tasks.outside
from transom.cli.main import main

for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


def transom(*commands: list[str]) -> Iterator[tuple[int, str, str]]:
    """Run command lines in a process that has imported the plugin task; yield exit code, stdout and stderr of each."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT, json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, env={**os.environ, "COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    yield from map(tuple, map(json.loads, done.stdout.splitlines()))


@pytest.mark.long
def test_a_task_from_outside_is_served_like_any_other(tmp_path: Path) -> None:
    written = {"ann": ["a long day", "a short day", "a day at sea"], "bob": ["oh no", "no way", "oh well", "no more"]}
    folder, recipe, run = tmp_path / "lines", str(tmp_path / "authors.toml"), str(tmp_path / "run")
    folder.mkdir()
    for author, lines in written.items():
        (folder / f"{author}.txt").write_text("\n".join(f"{line} {n}" for n in range(20) for line in lines))
    model = "d_model = 16\nn_heads = 2\nd_ff = 32\nn_layers = 1\nmax_seq_len = 32\n"
    training = 'max_steps = 40\nlearning_rate = 0.01\nbatch_tokens = 512\nschedule = { kind = "cosine", warmup_steps = 5 }\n'
    Path(recipe).write_text(f'task = "authors"\n[data]\nroot = "."\n[model]\n{model}[training]\n{training}')

    outcomes = transom(
        ["train", "--help"],
        ["classify", "--help"],
        ["train", recipe],
        ["train", recipe, "--labeled-data", "a.tsv"],
        ["train", recipe, "--valid-authors", "a"],
        ["train", recipe, "--authors", str(folder), "--out", run],
        ["classify", run, "a day at home", "oh no no"],
        ["translate", run, "a day"],
        ["evaluate", run],
        ["embed", run, "a day", "oh no"],
        ["tokenizer", "train", recipe, "--authors", str(folder), "--out", str(tmp_path / "tokenizer.json")],
        ["--help"],
        ["authors", "--help"],
        ["authors", run],
    )
    _, page, _ = next(outcomes)
    assert "--authors" in page and "For a critic: a folder of AUTHOR.txt." in page and "--labeled-data" in page
    assert "or a folder of AUTHOR.txt." in next(outcomes)[1]
    assert "expected exactly one of data.train and data.generate; name your own files with --authors" in next(outcomes)[2]
    assert "authors.toml trains on --authors, found --labeled-data" in next(outcomes)[2]
    assert "--valid-authors requires --authors: the lines to train on" in next(outcomes)[2]
    code, out, err = next(outcomes)
    assert code == 0 and f"try: transom classify {run}" in out, err
    card = (tmp_path / "run" / "README.md").read_text()
    assert "An authors model" in card and "lines per second" in card
    assert [line.split("\t")[0] for line in next(outcomes)[1].splitlines()] == ["ann", "bob"]
    assert "expected a run that transom translate can use, found one for transom classify" in next(outcomes)[2]
    assert f"found one for transom classify; use transom authors {run} --score FILE" in next(outcomes)[2]
    assert next(outcomes)[0] == 0
    code, _, err = next(outcomes)
    assert code == 0 and "training the tokenizer on 125 texts" in err
    assert "Name the authors that a model knows." in next(outcomes)[1]
    assert "transom authors runs/lines" in next(outcomes)[1]
    assert next(outcomes)[:2] == (0, "ann bob\n")


def test_without_it_its_run_is_refused_in_a_line(tmp_path: Path) -> None:
    recipe = tmp_path / "authors.toml"
    recipe.write_text('task = "authors"')
    with pytest.raises(ConfigError, match="expected a task, found 'authors'; known: translation, language, instruction, masked"):
        load_recipe(recipe)
