"""The pages for users: questions and installation."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import TINY, sets, write_pairs
from tests.docs.pages import Reader, blocks_of, command_lines
from tests.size import ROOT
from transom.checkpoints.run_files import FILES
from transom.cli.main import main

FAQ, INSTALL = ((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("faq", "install"))


@pytest.mark.long
def test_the_answers_to_questions_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    for seed, name in enumerate(("train", "test")):
        for path, language in zip(write_pairs(tmp_path, 120, seed), ("en", "de"), strict=True):
            path.rename(tmp_path / f"{name}.{language}")
    Reader(tmp_path, monkeypatch, capfd, sets(*TINY, "training.max_steps=4")).read(FAQ)
    shutil.rmtree(tmp_path / "runs" / "hour" / "checkpoints")
    (tmp_path / "runs" / "hour").rename(tmp_path / "moved")
    assert main(["translate", "moved", "ab ba"]) == 0, "a finished run needs no checkpoints, and its folder can be moved"


def test_the_questions_name_every_file_of_a_run() -> None:
    assert set(FILES) <= set(re.findall(r"`([\w.]+)`", FAQ))


def test_the_installation_names_extras_that_exist_and_all_for_users() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
    named = set(re.findall(r"^\| `pip install 'transom\[([\w-]+)\]'` \|", INSTALL, re.MULTILINE))
    assert named == extras - {"dev", "docs", "bench"}
    assert all(f"`{extra}`" in INSTALL for extra in extras - named)


def test_the_commands_of_the_installation_are_those_of_pip_and_transom() -> None:
    commands = [line for block in blocks_of(INSTALL) for line in command_lines(block.text)]
    assert commands and all(
        re.match(r"(env/bin/)?python -m (pip|venv) |env/bin/transom |rm -rf ~/\.cache/transom$", line) for line in commands
    )
