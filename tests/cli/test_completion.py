"""Shell completion of commands and options."""

import os
import subprocess
import sys

import pytest


def complete(line: str) -> list[str]:
    """Ask for completions as bash does; the last word is incomplete."""
    words = line.split(" ")
    variables = {"_TRANSOM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    ran = subprocess.run([sys.executable, "-m", "transom"], capture_output=True, text=True, env={**os.environ, **variables}, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("transom tra", {"train", "trace", "translate"}),
        ("transom train text-classes --lab", {"--labeled-data", "--label-field"}),
        ("transom translate runs/mine --n", {"--n-best"}),
        ("transom classify runs/mine --too-long w", {"window"}),
        ("transom nonsense --x", set()),
    ],
)
def test_commands_options_and_values_are_completed(line: str, found: set[str]) -> None:
    assert set(complete(line)) == found


def test_the_script_is_shown() -> None:
    detection = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "transom", "--show-completion", "bash"]
    ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **detection}, check=True)
    assert "_TRANSOM_COMPLETE=complete_bash" in ran.stdout
