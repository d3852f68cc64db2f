"""Run a page as a reader would: its blocks in order, in one folder, and compare what is printed with what the page shows."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.size import ROOT
from transom.cli.main import main

MAX_POINTS = 6.0
"""Largest difference, in percentage points, between a percentage on a page and the printed one."""

_NUMBER = re.compile(r"-?\d+(?:[,.]\d+)*")
_PERCENTAGE = re.compile(r"-?\d+(?:\.\d+)?(?=%)")


class Block(NamedTuple):
    """A fenced code block of a page."""

    language: str
    text: str


def blocks_of(page: str) -> list[Block]:
    """Return the code blocks of a page in order."""
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)]


def command_lines(block: str) -> list[str]:
    """Return the commands of a block, each on one line."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]


def is_printed(shown: str, printed: str) -> bool:
    """Return whether a printed line is the one that a page shows.

    Spaces do not matter, ``...`` stands for anything, and numbers may differ, percentages by at most ``MAX_POINTS``.

    >>> is_printed("accuracy 99.50% of 200 texts", "accuracy   97.00% of 198 texts")
    True
    >>> is_printed("accuracy 99.50% of 200 texts", "accuracy 57.00% of 200 texts")
    False
    >>> is_printed("billing 0.99", "shipping 0.99"), is_printed("In the ...", "In the end"), is_printed("train: ...", "valid: 3")
    (False, True, False)
    """
    pattern = "".join(
        re.escape(part) if part != "..." else ".*" for part in re.split(r"(\.\.\.)", _NUMBER.sub("0", " ".join(shown.split())))
    )
    if re.fullmatch(pattern, _NUMBER.sub("0", " ".join(printed.split()))) is None:
        return False
    if "..." in shown:
        return True
    pairs = zip(_PERCENTAGE.findall(shown), _PERCENTAGE.findall(printed), strict=True)
    return all(abs(float(one) - float(other)) <= MAX_POINTS for one, other in pairs)


def run_transom(words: Sequence[str]) -> int:
    """Run a command in this process, or in one of its own if it counts the memory of its process; return its exit status."""
    if words[0] != "find-batch":
        return main(list(words))
    command, paths = [sys.executable, "-m", "transom", *words], {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, stdin=subprocess.DEVNULL, env={**os.environ, **paths}, timeout=120, check=False).returncode


class Reader:
    """A reader who types the blocks of a page into one folder.

    Attributes:
        printed: everything that the last block of commands printed.
    """

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], training_options: Sequence[str] = ()
    ) -> None:
        """Go to a folder, with a program ``transom`` on the path that runs this checkout.

        Args:
            folder: folder in which the page's commands run.
            monkeypatch: changes folder and environment until the end of the test.
            capfd: captures what is printed.
            training_options: options to add to every command that starts a run, such as those of a small model.
        """
        self.capfd, self.printed, self.training_options = capfd, "", list(training_options)
        programs = folder / ".programs"
        programs.mkdir(parents=True)
        (programs / "transom").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m transom "$@"\n', encoding="utf-8")
        (programs / "transom").chmod(0o755)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(self, command: str) -> None:
        """Run one command line; ``transom`` runs by ``run_transom`` unless the shell is needed."""
        short = re.sub(r"--minutes [\d.]+", "--minutes 0.02", command)
        self.capfd.readouterr()
        if short.startswith("transom ") and not set("|<>$;") & set(short):
            words = shlex.split(short, comments=True)[1:]
            code = run_transom([*words, *(self.training_options if words[0] == "train" and "--resume" not in words else [])])
        else:
            code = subprocess.run(["bash", "-ec", short], stdin=subprocess.DEVNULL, timeout=120, check=False).returncode
        out, err = self.capfd.readouterr()
        assert code == 0, f"{command}\n{err}"
        self.printed += err + out

    def read(self, page: str) -> None:
        """Run all blocks of a page; a block ``text`` is compared with what the commands before it printed."""
        fresh = True
        for block in blocks_of(page):
            if block.language == "python":
                exec(compile(block.text, "page", "exec"), {"__name__": "__main__"})
            elif block.language == "sh":
                self.printed = "" if fresh else self.printed
                fresh = False
                for command in command_lines(block.text):
                    self.run(command)
            elif block.language == "text":
                fresh = True
                printed = self.printed.splitlines()
                missing = [line for line in block.text.splitlines() if line and not any(is_printed(line, other) for other in printed)]
                assert not missing, f"the page shows {missing}\nprinted was\n{self.printed}"
