"""Training in terminals: widths from 40 to 200 columns, no colors, the C locale, Ctrl-C, resizing, a closed pipe."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pexpect
import pytest

from tests.cli.conftest import Trained, sets
from tests.tiers import tiers

LONG = sets("training.max_steps=120", "training.validate_every=40")


def start(trained: Trained, out: Path, columns: int = 80, **environment: str) -> Any:
    """Start a training in a pseudo-terminal."""
    words = ["-m", "transom", *trained.command, *LONG, "--out", str(out)]
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")} | environment
    return pexpect.spawn(sys.executable, words, encoding="utf-8", timeout=120, dimensions=(30, columns), env=env)


def shown_lines(output: str) -> list[str]:
    """Return the lines that were drawn, without the terminal's commands."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output))


@pytest.mark.parametrize("columns", tiers([40, 60, 79, 120, 200], long=[40, 120]))
def test_every_line_fits_and_the_time_left_is_shown(trained: Trained, tmp_path: Path, columns: int) -> None:
    with start(trained, tmp_path / "run", columns) as terminal:
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 0
    lines = shown_lines(terminal.before)
    bars = [line for line in lines if "/120 steps" in line]
    assert any(" left" in line for line in bars) and max(map(len, bars)) <= columns, max(bars, key=len)
    assert "parameters;" in {word for line in lines for word in line.split()}, "words are not broken"


@pytest.mark.parametrize(
    "environment",
    tiers(
        [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}],
        long=[{"LC_ALL": "C", "PYTHONUTF8": "0"}],
    ),
)
def test_any_environment_trains(trained: Trained, tmp_path: Path, environment: dict[str, str]) -> None:
    with start(trained, tmp_path / "run", **environment) as terminal:
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 0 and "ended at step 120" in terminal.before
    assert ("\x1b[3" in terminal.before) <= ("NO_COLOR" not in environment)


@pytest.mark.long
def test_ctrl_c_saves_and_resizing_disturbs_nothing(trained: Trained, tmp_path: Path) -> None:
    with start(trained, tmp_path / "run", 100) as terminal:
        terminal.expect(r"\d+/120 steps")
        terminal.setwinsize(30, 50)
        terminal.expect("step 40: validation")
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 130 and "checkpoint saved" in terminal.before
    with start(trained, tmp_path / "run") as terminal:
        terminal.expect("Delete it and start over")
        terminal.sendline("n")
        terminal.expect(pexpect.EOF)
    assert terminal.exitstatus == 2


@pytest.mark.long
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_pipe_ends_quietly(trained: Trained, tmp_path: Path, stream: str) -> None:
    command = [sys.executable, "-m", "transom", *trained.command, *LONG, "--out", str(tmp_path / "run")]
    reads, writes = os.pipe()
    other = "stderr" if stream == "stdout" else "stdout"
    with subprocess.Popen(command, **{stream: writes, other: subprocess.PIPE}) as process:  # type: ignore[call-overload]
        os.close(reads), os.close(writes)
        process.communicate(timeout=120)
    assert process.returncode in (0, 141, -signal.SIGPIPE, 2)
