"""Run every block of docs/python.md in order in one folder, and compare its output with the block after it."""

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file

from tests.size import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
FLOAT = re.compile(r"\d+\.\d+")


class Use(NamedTuple):
    """One section of the page."""

    title: str
    code: str
    command: str
    output: str


def uses() -> list[Use]:
    """Split the page at its headings; each use has one block of Python, its output, and perhaps the command that runs it."""
    found = []
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        blocks = dict(re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL))
        found.append(Use(section.splitlines()[0], blocks["python"], blocks.get("sh", ""), blocks["text"]))
    return found


USES = uses()


def agrees(printed: str, shown: str) -> bool:
    """Compare an output with the page: ``...`` stands for anything, and numbers with a point may differ by 15% or 0.1."""
    pattern = re.escape(FLOAT.sub("<>", shown.rstrip())).replace(re.escape("..."), "(?s:.*)").replace("<>", r"(\d+\.\d+)")
    match = re.fullmatch(pattern, printed.rstrip())
    expected = map(float, FLOAT.findall(shown))
    return match is not None and all(float(a) == pytest.approx(b, rel=0.15, abs=0.1) for a, b in zip(match.groups(), expected, strict=True))


def test_outputs_are_compared() -> None:
    assert agrees("a 1.00\nb 7 c\n", "a 1.10\nb 7 ...\n") and agrees("x", "x\n")
    assert not agrees("a 1.00", "a 1.50") and not agrees("a 7", "a 8") and not agrees("a 1.00\nb", "a 1.00")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Enter an empty folder; restore PyTorch's random state afterwards."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        yield tmp_path


def run(code: str) -> str:
    """Execute a block; return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, "docs/python.md", "exec"), {"__name__": "__main__"})
    return printed.getvalue()


SLOW = ("5.", "6.")
"""Uses that train for more than a few seconds."""


@pytest.mark.parametrize("use", [use for use in USES if not use.title.startswith(SLOW)], ids=lambda use: use.title)
def test_a_use_prints_what_the_page_shows(use: Use, folder: Path) -> None:
    printed = run(use.code)
    assert agrees(printed, use.output), printed


@pytest.mark.long
def test_the_plain_training_loop(folder: Path) -> None:
    (loop,) = [use for use in USES if use.title.startswith("5.")]
    assert len(loop.code.splitlines()) <= 60
    printed = run(loop.code)
    assert agrees(printed, loop.output), printed


def torchrun(command: str, folder: Path) -> str:
    """Run a torchrun command of the page; return what it prints."""
    program, *arguments = command.split()
    assert program == "torchrun"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    module = [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments]
    return subprocess.run(module, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.long
def test_two_processes_learn_what_one_learns_from_the_same_batches(folder: Path) -> None:
    (ddp,) = [use for use in USES if use.title.startswith("6.")]
    (folder / "ddp.py").write_text(ddp.code)
    printed = torchrun(ddp.command, folder)
    assert agrees(printed, ddp.output), printed
    by_two = load_file(folder / "ddp.safetensors")
    assert "batch_size=16" in ddp.code
    (folder / "ddp.py").write_text(ddp.code.replace("batch_size=16", "batch_size=32"))
    torchrun(ddp.command.replace("2", "1", 1), folder)
    by_one = load_file(folder / "ddp.safetensors")
    assert by_one.keys() == by_two.keys()
    assert max((by_one[name] - by_two[name]).abs().max().item() for name in by_one) < 0.02


def test_the_page_shows_twelve_uses() -> None:
    assert [use.title.split(".")[0] for use in USES] == [str(n) for n in range(1, 13)]
    assert all(use.output.strip() for use in USES)
