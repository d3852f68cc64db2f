"""Ranks of one machine: results in order, and a failing rank by its number."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import distributed

from transom.parallel.processes import local_ranks
from transom.parallel.processes.local_ranks import RanksFailedError, run_on_ranks


def add(rank: int, number: float) -> tuple[int, torch.Tensor]:
    x = torch.tensor([float(rank), number])
    distributed.all_reduce(x)
    return rank, x


def fail_on(rank: int, failing: int, how: str) -> None:
    if rank == failing:
        if how == "raise":
            raise ValueError("no such width")
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.barrier()


def interrupt(rank: int, pid: int) -> None:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(pid, signal.SIGINT)
    signal.pause()


def kill_first_process(rank: int, pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    signal.pause()


def test_results_come_in_rank_order() -> None:
    results = run_on_ranks(3, add, 0.5)
    assert [rank for rank, _ in results] == [0, 1, 2] and all(x.tolist() == [3.0, 1.5] for _, x in results)


@pytest.mark.parametrize("failing", [0, 2])
@pytest.mark.parametrize(("how", "message"), [("raise", "ValueError: no such width"), ("kill", "was killed by signal 9")])
def test_the_rank_that_fails_is_named_first(failing: int, how: str, message: str) -> None:
    begin = time.monotonic()
    with pytest.raises(RanksFailedError) as failed:
        run_on_ranks(3, fail_on, failing, how)
    first, *others = failed.value.failures
    assert (first.rank, first.error) == (failing, message)
    assert all("ValueError" not in each.error for each in others), "they have lost a connection"
    assert ("no such width" in first.traceback) == (how == "raise")
    assert time.monotonic() - begin < 60


def test_an_interrupt_reaches_the_first_process_only_which_ends_the_ranks_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_on_ranks(2, interrupt, os.getpid())
    assert not multiprocessing.active_children()


def test_a_rank_whose_process_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(process: object) -> None:
        raise EOFError("unexpected EOF")

    context = local_ranks._context("torch")
    monkeypatch.setattr(context.Process, "start", fail)
    with pytest.raises(RanksFailedError, match=r"rank 0: cannot be started \(EOFError: unexpected EOF\)"):
        run_on_ranks(2, interrupt, os.getpid())


@pytest.mark.long
def test_ranks_end_with_the_first_process() -> None:
    script = "import os; from tests.parallel.test_local_ranks import *; run_on_ranks(1, kill_first_process, os.getpid())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=100)  # returns once no process holds the pipes
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, b"", b"")
