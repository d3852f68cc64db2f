"""Processes of one run: what they do together, and how they end: with the first one, never after it, and not unnoticed."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.parallel.talker import LISTS, SAID, talk
from transom.parallel.processes.collectives import SINGLE_PROCESS, ProcessLostError
from transom.parallel.processes.launcher import launch_processes

TALKER = "tests.parallel.talker"


@pytest.mark.parametrize("size", [2, 3])
def test_all_processes_see_the_same(size: int) -> None:
    with launch_processes(TALKER, ["talk"], size, threads=1) as world:
        assert (world.rank, world.size) == (0, size)
        for _ in range(2):
            seen = talk(world)
            assert seen["broadcast_scalars"] == (7,)
            assert seen["totals"] == tuple(map(sum, zip(*SAID[:size], strict=True)))
            ones = [sum(10.0**rank for rank in range(size))] * 3
            assert seen["summed"] == [[ones, ones], [sum(rank + 0.5 for rank in range(size))]]
            assert seen["gathered"] == [[rank] for rank in range(size)]
            assert seen["joint"] == [number for numbers in LISTS[:size] for number in numbers]
            world.broadcast_scalars(1)  # the others do it again and compare
        talk(world)
        world.broadcast_scalars(0)


def test_alone_nothing_changes() -> None:
    x = torch.ones(2)
    assert (
        SINGLE_PROCESS.broadcast_scalars(5) == (5,)
        and SINGLE_PROCESS.all_reduce_scalars(1, 2.5) == (1, 2.5)
        and SINGLE_PROCESS.all_gather_lists([3]) == [3]
    )
    SINGLE_PROCESS.all_reduce([x])
    assert x.tolist() == [1, 1] and SINGLE_PROCESS.all_gather(x)[0] is x
    with launch_processes("no.such.module", [], 1, threads=1) as world:
        assert world is SINGLE_PROCESS


def test_a_process_that_cannot_begin_is_named_with_its_last_words() -> None:
    with (
        pytest.raises(ProcessLostError, match=r"did not start.*without \[parallel\].*\(nothing works here\)"),
        launch_processes(TALKER, ["fail"], 2, threads=1),
    ):
        pass


def test_a_process_that_dies_is_noticed_at_once() -> None:
    with (
        pytest.raises(ProcessLostError, match=r"found that one has exited.*--resume.*\(rank 1 was killed by SIGKILL"),
        launch_processes(TALKER, ["die"], 2, threads=1) as world,
    ):
        while True:
            talk(world)
            world.broadcast_scalars(1)


@pytest.mark.long
def test_workers_die_with_the_first_process_and_are_deaf_to_signals() -> None:
    program = f"""
import os, subprocess
from transom.parallel.processes.launcher import launch_processes
from tests.parallel.talker import talk
with launch_processes({TALKER!r}, ["talk"], 3, threads=1) as world:
    talk(world)
    found = subprocess.run(["pgrep", "-P", str(os.getpid()), "python"], capture_output=True, text=True).stdout
    print(found.replace("\\n", " "), flush=True)
    input()
"""
    command = [sys.executable, "-c", program]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert first.stdout is not None and first.stdin is not None
    workers = [int(number) for number in first.stdout.readline().split()]
    assert len(workers) == 2
    watches = [os.pidfd_open(number) for number in workers]
    for number in workers:
        os.kill(number, signal.SIGTERM)
        os.kill(number, signal.SIGINT)
    first.kill()
    first.communicate()
    for watch in watches:
        poll = select.poll()
        poll.register(watch, select.POLLIN)
        assert poll.poll(20_000), "a worker outlived the first process"
        os.close(watch)
