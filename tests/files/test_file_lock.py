"""No two processes ever hold one run, whatever they do at the same moment."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints.checking import names
from transom.checkpoints import run_folder
from transom.checkpoints.run_files import LOCK, RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.errors import ConfigError

ROOT = Path(__file__).parents[2]


def first_time(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Do something before and after the first call of a function."""
    real, calls = getattr(where, name), list[int]()

    def meddled(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            return real(*arguments, **options)
        before()
        result = real(*arguments, **options)
        after()
        return result

    monkeypatch.setattr(where, name, meddled)


def nothing() -> None:
    pass


def test_a_lock_file_that_was_removed_meanwhile_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process opens the file, its holder removes it and goes, a third makes and locks a new one: the first must not get in."""
    path, third = tmp_path / "run", list[RunFolder]()
    holder = RunFolder.create(path)

    def meanwhile() -> None:
        holder.close()
        third.append(RunFolder.create(path))

    first_time(monkeypatch, fcntl, "flock", meanwhile, nothing)
    with pytest.raises(ConfigError, match="another training run is writing to this folder"):
        RunFolder.create(path)
    third[0].metrics.append({"step": 1})
    third[0].close()
    assert names(path) == {LOCK, "metrics.jsonl"}


def test_a_folder_that_goes_before_it_is_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = RunFolder.create(tmp_path / "run")
    first_time(monkeypatch, run_folder, "make_folder", nothing, holder.close)
    with RunFolder.create(tmp_path / "run") as run:
        run.metrics.append({"step": 1})
    assert names(tmp_path / "run") == {LOCK, "metrics.jsonl"}


def test_a_folder_that_another_takes_while_it_is_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, other = tmp_path / "run", list[RunFolder]()
    holder = RunFolder.create(path)
    first_time(monkeypatch, Path, "rmdir", lambda: other.append(RunFolder.create(path)), nothing)
    holder.close()
    with other[0] as run, pytest.raises(ConfigError, match="another training run is writing to this folder"):
        run.metrics.append({"step": 1})
        RunFolder.create(path)
    assert names(path) == {LOCK, "metrics.jsonl"}


def test_a_lock_file_that_was_put_in_the_place_of_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run"
    ours = RunFolder.create(path)
    (path / LOCK).unlink()
    with RunFolder.create(path), pytest.raises(ConfigError, match="another training run is writing to this folder"):
        ours.close()
        RunFolder.create(path)


HAMMER = """
import os, sys
from pathlib import Path
from transom.errors import ConfigError
from transom.checkpoints.run_folder import RunFolder
path, mark, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
input()
held = tried = 0
while tried < rounds or not held:  # one that the others kept out all the time gets its turn when they are done
    tried += 1
    try:
        run = RunFolder.create(path)
    except ConfigError as error:
        assert "another training run is writing to this folder" in str(error), error
        continue
    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))  # fails where another process is between these lines too
    held += 1
    os.unlink(mark)
    run.close()
print(held)
"""


def hammered(tmp_path: Path, n_processes: int, rounds: int) -> list[int]:
    """Let processes take and leave one run as fast as they can; return how often each held it."""
    command = [sys.executable, "-c", HAMMER, str(tmp_path / "run"), str(tmp_path / "mark"), str(rounds)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    processes = [subprocess.Popen(command, **pipes) for _ in range(n_processes)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * n_processes
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [process.communicate() for process in processes]
    assert [error for _, error in ends] == [""] * n_processes
    assert names(tmp_path / "run") <= {LOCK}
    return [int(out) for out, _ in ends]


@pytest.mark.long
def test_processes_that_hammer_one_run_never_hold_it_together(tmp_path: Path) -> None:
    assert all(held > 0 for held in hammered(tmp_path, 2, 300))


@pytest.mark.long
def test_many_processes_that_hammer_one_run_never_hold_it_together(tmp_path: Path) -> None:
    assert all(held > 0 for held in hammered(tmp_path, 4, 1500))


def test_a_restarted_job_resumes_the_run_that_it_began_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunFolder.create(tmp_path, job="torchrun 1") as folder:
        folder.write(RECIPE, b"")
    with pytest.raises(ConfigError, match="holds a run already"):
        RunFolder.create(tmp_path, job="torchrun 1")  # the same process
    with RunFolder.create(tmp_path, resume=True, job="torchrun 1"):
        pass
    monkeypatch.setattr(os, "getpid", lambda: 0)
    with RunFolder.create(tmp_path, overwrite=True, job="torchrun 1") as folder:
        assert folder.has_recipe, "the run is resumed, not overwritten"
    with pytest.raises(ConfigError, match="holds a run already"):
        RunFolder.create(tmp_path, job="torchrun 2")
