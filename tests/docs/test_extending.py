"""The page on extending: its files have the size that is promised, and its commands run, in order, with what trains made short."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import sets
from tests.size import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
COPY = sets(
    *("model.d_model=16", "model.n_heads=2", "model.d_ff=16", "model.n_encoder_layers=1", "model.n_decoder_layers=1"),
    *("data.generate.n_train=200", "data.generate.n_valid=20", "data.generate.n_test=20"),
)
AUTHORS = sets("model.d_model=16", "model.n_heads=2", "model.d_ff=16", "model.n_layers=1")
SHORT = {
    "train copy": [*COPY, *sets("training.max_steps=4")],
    "train authors.toml": [*AUTHORS, *sets("training.max_steps=4")],
    "compare-components copy": COPY,
}

RUN = """
import sys
from transom.cli.main import main
sys.exit(main())
"""


def blocks(language: str) -> list[str]:
    """Return the page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def plugins() -> dict[str, str]:
    """Return the page's plugins by the names of their files, which their first lines give."""
    found = {named[1]: block for block in blocks("python") if (named := re.match(r"# (\w+\.py): ", block))}
    assert set(found) == {"gated_square.py", "nearness.py", "authors.py"}
    return found


def commands() -> list[list[str]]:
    """Return the arguments of the page's commands, shortened where they train."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    words = [shlex.split(line)[1:] for line in lines]
    short = [[*each, *SHORT.get(" ".join(each[:2]), [])] for each in words]
    return [[{"300": "4", "3": "2"}.get(word, word) if each[0] == "compare-components" else word for word in each] for each in short]


def python(script: str, folder: Path, *arguments: str) -> str:
    """Run a script in a process of its own, which no other plugin was imported into; return what it prints."""
    command = [sys.executable, "-c", script, *arguments]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_feed_forward_takes_30_lines_and_a_task_200() -> None:
    lines = {name: len(text.splitlines()) for name, text in plugins().items()}
    assert lines["gated_square.py"] <= 30 and lines["authors.py"] <= 200, lines


@pytest.mark.long
def test_each_plugin_is_imported_first_into_a_process(tmp_path: Path) -> None:
    for name, text in plugins().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        python("import sys; from transom.config.plugins import import_plugins; import_plugins([sys.argv[1]])", tmp_path, name)


@pytest.mark.long
def test_the_page_runs(tmp_path: Path) -> None:
    for name, text in plugins().items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "authors.toml").write_text(next(block for block in blocks("toml") if block.startswith("task")), encoding="utf-8")
    (tmp_path / "poems").mkdir()
    for author, line in (("keats", "A thing of beauty number {}"), ("blake", "Tiger tiger burning bright {}")):
        (tmp_path / "poems" / f"{author}.txt").write_text("".join(line.format(i) + "\n" for i in range(30)), encoding="utf-8")
    trains = [words for words in commands() if words[0] != "translate" and words[0] != "classify"]
    assert [words[0] for words in trains] == ["train", "compare-components", "train", "train", "train"]
    for words in trains:
        python(RUN, tmp_path, *words)
    uses = [words for words in commands() if words not in trains]
    assert [words[0] for words in uses] == ["translate", "translate", "classify"]
    told = [python(RUN, tmp_path, *words) for words in uses]
    assert re.search(r"keats|blake", told[-1])
    (called,) = [block for block in blocks("python") if block.startswith("import transom")]
    python(called, tmp_path)
    for run, plugin in (("mine", "gated_square.py"), ("near", "nearness.py"), ("authors", "authors.py"), ("poems", "authors.py")):
        (record,) = json.loads((tmp_path / "runs" / run / "config.json").read_text())["plugins"]
        assert record["name"] == plugin
        assert f"--plugin {tmp_path.resolve() / plugin}" in (tmp_path / "runs" / run / "README.md").read_text()
    assert (tmp_path / "runs" / "compare-copy" / "loss.svg").is_file()
