"""The Makefile has its targets, needs no activation, and installs nothing that is not pinned."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.size import FAIL, ROOT, lines_of_files, main

TARGETS = ("demo", "test", "ci", "check", "chaos", "soak", "bench", "docs", "site", "size", "release-check")


def dry_run(*arguments: str) -> str:
    """Return what make would do in a fresh clone."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "--dry-run", "--always-make", "VENV=/nowhere/venv", *arguments]
    return subprocess.run(command, cwd=ROOT, env=quiet, check=True, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_brings_its_own_environment(target: str) -> None:
    done = dry_run(target)
    assert "-m venv /nowhere/venv" in done
    commands = [line for line in done.splitlines() if not line.startswith(("test -n ", '"', "echo ", "touch "))]
    assert commands
    assert all(
        re.match("(TRANSOM_KERNELS=reference )?(PYTHONDONTWRITEBYTECODE= )?(OMP_NUM_THREADS=1 )?/nowhere/venv/bin/", command)
        for command in commands
    ), commands


def test_every_installation_is_pinned_and_takes_another_index() -> None:
    installs = [line for line in dry_run("test", "PIP_INDEX_ARGS=--index-url INDEX").splitlines() if "pip install" in line]
    assert len(installs) >= 3
    assert all("-c constraints.txt" in line and "--index-url INDEX" in line for line in installs)


def test_one_thread_a_test_process() -> None:
    sessions = [line for line in dry_run("ci").splitlines() if "-m pytest" in line]
    assert len(sessions) == 4
    assert all("OMP_NUM_THREADS=1" in line for line in sessions)


def test_the_session_of_long_and_compiled_tests_has_all_of_them_without_shape_checks() -> None:
    (session,) = (line for line in dry_run("ci").splitlines() if "(long or compile) and not soak" in line)
    assert session.endswith(" tests") and "jaxtyping" not in session and "-o addopts=" in session


def test_every_test_is_in_the_first_tier_and_checks_shapes_in_ci() -> None:
    computing, others, *_, reference = (line.split() for line in dry_run("ci").splitlines() if "-m pytest" in line)
    rooms = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.glob("test_*.py"))}
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("test_*.py")}
    assert {word for word in computing + others if word.startswith("tests/")} == rooms | files
    assert "transom" in computing, "the doctests"
    composing = {"bad_input", "benchmarks", "chaos", "checkpoints", "cli", "config", "docs", "exchange", "files", "parallel", "planning"}
    assert {word for word in computing + reference if word.startswith("tests/")} == rooms - {f"tests/{room}" for room in composing}
    checked = {path.relative_to(ROOT).parts[1] for path in (ROOT / "transom").rglob("*.py") if "from jaxtyping" in path.read_text("utf-8")}
    assert "layers" in checked and checked & composing == {"parallel"}, "ranks are processes of their own, which check no shapes"


def test_help_tells_of_every_target() -> None:
    page = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=60).stdout
    assert all(f"make {target} " in page for target in TARGETS)


@pytest.mark.parametrize("lacking", ["", "venv", "c++", "chromium", "npm"])
def test_ci_installs_what_is_lacking_and_calls_make_ci(lacking: str, tmp_path: Path) -> None:
    """Every program that .ci/run calls is one that tells of the call."""
    for name in {"make", "c++", "python3", "apt-get", "id", "chromium", "npm"} - {lacking}:
        refuses = "case $2 in *ensurepip*) exit 1;; esac; exit 0" if name == "python3" and lacking == "venv" else "exit 0"
        tells = f'echo "{name} $*"' if name in ("make", "apt-get", "npm") else "echo 0" if name == "id" else refuses
        (tmp_path / name).write_text(f"#!/bin/sh\n{tells}\n")
        (tmp_path / name).chmod(0o755)
    for needed in ("bash", "sh", "dirname", "basename"):
        (tmp_path / needed).symlink_to(str(shutil.which(needed)))
    done = subprocess.run(
        [tmp_path / "bash", ROOT / ".ci" / "run"], env={"PATH": str(tmp_path)}, check=True, capture_output=True, text=True
    )
    package = {"": None, "npm": None, "venv": "python3-venv", "c++": "g++", "chromium": "--no-install-recommends chromium"}[lacking]
    installs = [] if package is None else ["apt-get update -qq", f"apt-get install -y -qq {package}"]
    scan = [line for line in done.stdout.splitlines() if line.startswith("npm ")]
    assert len(scan) == (lacking != "npm") and all(
        re.search(r"--ignore-scripts --prefix build/npm axe-core@[\d.]+$", line) for line in scan
    )
    assert done.stdout.splitlines() == [*installs, *scan, "make ci"]


@pytest.mark.long
def test_size_prints_every_file_and_the_rooms(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    printed = capsys.readouterr().out
    assert all(path.name in printed for path in lines_of_files())
    assert "  transom/config\n" in printed
    assert FAIL == 500
