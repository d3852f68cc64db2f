"""The sanitizers run clean over the native code, and find what is planted; ``make sanitize`` shows the same by hand."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.test_native_decoder import needs_library

ROOT = Path(__file__).parents[2]
pytestmark = [needs_library, pytest.mark.kernels]


def sanitize(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.kernels.sanitize", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)


@pytest.mark.soak
def test_nothing_is_found() -> None:
    done = sanitize()
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("0 findings") == 4 and "ran: " in done.stdout


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        pytest.param("overrun", "heap-buffer-overflow", marks=pytest.mark.long),
        pytest.param("race", "data race", marks=pytest.mark.soak),
    ],
)
def test_a_planted_fault_is_found(fault: str, told: str) -> None:
    done = sanitize("--planted", fault)
    assert done.returncode == 1 and told in done.stderr and "FOUND something" in done.stdout
