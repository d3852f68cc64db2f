"""A stopped process is noticed and named, and ends with the others; a busy one, however long it computes, is left alone."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.parallel.talker import talk
from transom.parallel.processes.collectives import ProcessLostError
from transom.parallel.processes.heartbeat import BEATS_PER_TIMEOUT, HeartbeatMonitor, SilenceTimer
from transom.parallel.processes.launcher import launch_processes

TALKER = "tests.parallel.talker"
LIMIT = 2.0


def children() -> set[str]:
    """List the processes that this one has started and that are there."""
    return {pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


def test_silence_is_counted_from_the_last_sign_of_life_and_for_each_rank_alone() -> None:
    timer = SilenceTimer({1: 60.0, 2: 60.0}, tick=5.0)
    for _ in range(12):
        timer.advance(5.0)
        timer.reset(1)
    assert timer.timed_out() == []
    timer.advance(5.0)
    assert timer.timed_out() == [(2, 65.0)]
    timer.reset(2)
    assert timer.timed_out() == []
    timer.stop_timing(2)
    for _ in range(13):
        timer.advance(5.0)
    assert timer.timed_out() == [(1, 70.0)]


def test_the_time_in_which_the_first_process_itself_stood_still_does_not_count() -> None:
    timer = SilenceTimer({1: 60.0}, tick=5.0)
    timer.advance(3600.0)
    assert timer.timed_out() == []
    timer.advance(55.0)
    assert timer.timed_out() == []


@pytest.mark.long
def test_a_stopped_process_is_named_and_ends() -> None:
    before = children()
    with (
        pytest.raises(ProcessLostError, match=r"found none from rank 2 for [2-9] s: it was stopped.*--resume; .*without \[parallel\]"),
        launch_processes(TALKER, ["stop"], 3, threads=1, timeout=LIMIT) as world,
    ):
        while True:
            talk(world)
            world.broadcast_scalars(1)
    assert children() == before


@pytest.mark.long
@pytest.mark.parametrize(
    ("does", "found"), [("die early", "found that one has exited"), ("stop early", r"found none from rank 1 for [2-9] s")]
)
def test_a_process_that_is_lost_between_ready_and_joined_is_noticed(does: str, found: str) -> None:
    before = children(), sys.excepthook
    with pytest.raises(ProcessLostError, match=found), launch_processes(TALKER, [does], 2, threads=1, timeout=LIMIT):
        pass
    assert (children(), sys.excepthook) == before
    with launch_processes(TALKER, ["talk"], 2, threads=1) as world:  # what failed leaves nothing that the next run waits for
        talk(world)
        world.broadcast_scalars(0)


def test_a_run_whose_collectives_do_not_notice_a_failed_process_is_ended() -> None:
    """As on GPUs: the monitor names the process, unless it has ended well, and unless the run ends by itself."""
    ended, named = list[int](), threading.Event()

    def end_run(rank: int) -> None:
        ended.append(rank)
        named.set()

    programs = ["", "raise SystemExit(3)"]
    processes = [subprocess.Popen([sys.executable, "-c", each], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for each in programs]
    monitor = HeartbeatMonitor(processes, 1.0, lambda: None, end_run)
    assert named.wait(30) and set(ended) == {2}
    monitor.close()
    for process in processes:
        process.communicate()


@pytest.mark.long
def test_a_process_that_computes_for_longer_than_the_limit_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats, hear = threading.Semaphore(0), HeartbeatMonitor._receive

    def heard(watch: HeartbeatMonitor, rank: int, said: bytes) -> bool:
        beats.release()
        return hear(watch, rank, said)

    monkeypatch.setattr(HeartbeatMonitor, "_receive", heard)
    with launch_processes(TALKER, ["compute", str(tmp_path / "done")], 2, threads=1, timeout=2 * LIMIT) as world:
        talk(world)
        while beats.acquire(blocking=False):
            pass
        for _ in range(2 * BEATS_PER_TIMEOUT):  # for about twice the limit the process computes and says nothing else
            assert beats.acquire(timeout=30), "the computing process sends no heartbeats"
        (tmp_path / "done").touch()
        world.broadcast_scalars(0)
