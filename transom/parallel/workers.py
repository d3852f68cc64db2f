"""The other processes of a run on one machine: begun by its first process, and never outliving it."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import transom
from transom.parallel import heartbeat
from transom.parallel.world import ALONE, ProcessLostError, World, joined
from transom.planning.process import environment_with

BEGIN = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1)); from transom.parallel.heartbeat import start_beating;"
    " start_beating(float(sys.argv.pop(1))); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""How a worker begins: it finds this very package, behind all else that it could find, whatever folder it is in, and sends heartbeats."""

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
"""The interface that the processes talk over: this machine's own."""


@contextmanager
def working_together(module: str, arguments: Sequence[str], size: int, threads: int, limit: float | None = None) -> Iterator[World]:
    """Start ``size - 1`` processes of a module and join them; they end with this one, however it ends.

    Args:
        module: run as with ``python -m MODULE RANK SIZE MEETING ARGUMENTS``; it calls ``worker``.
        arguments: the rest of its command line.
        size: how many processes there are with this one.
        threads: of each.
        limit: seconds without a heartbeat after which a process counts as stopped and is ended; left out, ``heartbeat.LIMIT``.

    Raises:
        ProcessLostError: one of them ended before its time, or was stopped; its last words are in the message.
    """
    if size == 1:
        yield ALONE
        return
    home, limit = str(Path(transom.__file__).parents[1]), heartbeat.LIMIT if limit is None else limit
    with ExitStack() as stack:
        stack.enter_context(environment_with({"GLOO_SOCKET_IFNAME": LOOPBACK}))
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="transom-")))
        meeting = folder / "meeting" / "store"
        meeting.parent.mkdir()
        processes, logs = [], [folder / f"{rank}.log" for rank in range(1, size)]
        for rank, log in enumerate(logs, 1):
            begin = [sys.executable, "-P", "-c", BEGIN, home, str(limit / heartbeat.BEATS)]
            command = [*begin, module, str(rank), str(size), str(meeting), *arguments]
            with log.open("wb") as errors:
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment)
            stack.callback(_end, process)
            processes.append(process)
        watch = heartbeat.Watch(processes, limit, lambda: _spoil(meeting))
        stack.callback(watch.close)
        try:
            if not watch.wait_until_ready():
                raise ProcessLostError(f"expected {size} processes, found that one could not begin")
            with ExitStack() as group:
                with watch.joining():
                    world = group.enter_context(joined(0, size, meeting))
                yield world
        except ProcessLostError as error:
            for process in processes:
                process.kill()
                process.wait()
            words = " ".join(line for log in logs for line in _last_line(log))
            found = _stopped(*watch.silent) if watch.silent else error
            advice = "a run begun with training.processes = 1 needs no others"
            raise ProcessLostError(f"{found}; {advice}" + (f" ({words})" if words else "")) from error


@contextmanager
def worker(rank: int, size: int, meeting: Path) -> Iterator[World]:
    """Join the run as one of its workers: deaf to signals, which are for the first process, and gone when that is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_die_with_the_first, daemon=True).start()
    sys.stdout.buffer.write(heartbeat.READY)
    sys.stdout.flush()
    with joined(rank, size, meeting) as world:
        yield world


def _spoil(meeting: Path) -> None:
    """Make every look into the meeting's file fail: who waits in it for a process that is gone would wait for ``world.PATIENCE``."""
    if meeting.parent.is_dir():
        shutil.rmtree(meeting.parent)
        meeting.parent.touch()  # looking for a file below a file is an error; a file that is not there is waited for


def _stopped(rank: int, seconds: float) -> str:
    return (
        f"expected heartbeats of all processes of the run, found rank {rank} silent for {seconds:.0f} s: it was stopped, or gets no time on"
        " this machine; its last checkpoint is kept: go on with --resume"
    )


def _die_with_the_first() -> None:
    sys.stdin.buffer.read()  # nothing is ever written: it returns when the first process has closed it or died
    os._exit(1)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()
    process.wait()


def _last_line(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
