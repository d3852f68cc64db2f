"""Launch the worker processes of a run on one machine; they are started by rank 0 and never outlive it."""

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
"""Program of a worker: append the folder of this package to ``sys.path``, start the heartbeat, run the module."""

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
"""Network interface of the process group: the loopback interface."""


@contextmanager
def working_together(module: str, arguments: Sequence[str], size: int, threads: int, limit: float | None = None) -> Iterator[World]:
    """Start ``size - 1`` worker processes and join their process group as rank 0; the workers exit with this process.

    Args:
        module: run as ``python -m MODULE RANK SIZE MEETING ARGUMENTS``; it calls ``worker``.
        arguments: remaining command-line arguments.
        size: number of processes, this one included.
        threads: threads per worker.
        limit: seconds without a heartbeat after which a worker is killed; ``heartbeat.LIMIT`` by default.

    Raises:
        ProcessLostError: a worker exited early or stopped; the message contains the last line of its log.
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
                raise ProcessLostError(f"expected {size} processes, found that one did not start")
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
            advice = "with training.processes = 1 a run needs no other process"
            raise ProcessLostError(f"{found}; {advice}" + (f" ({words})" if words else "")) from error


@contextmanager
def worker(rank: int, size: int, meeting: Path) -> Iterator[World]:
    """Join the process group as a worker that ignores signals (rank 0 handles them) and exits when rank 0 exits."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_die_with_the_first, daemon=True).start()
    sys.stdout.buffer.write(heartbeat.READY)
    sys.stdout.flush()
    with joined(rank, size, meeting) as world:
        yield world


def _spoil(meeting: Path) -> None:
    """Replace the rendezvous folder by a file, so that ranks that wait in the rendezvous fail at once instead of after the timeout."""
    if meeting.parent.is_dir():
        shutil.rmtree(meeting.parent)
        meeting.parent.touch()  # opening a path below a file is an error; a missing file would be polled


def _stopped(rank: int, seconds: float) -> str:
    return (
        f"expected heartbeats from all processes of the run, found none from rank {rank} for {seconds:.0f} s: it was stopped or gets no"
        " CPU time; the last checkpoint is kept: continue with --resume"
    )


def _die_with_the_first() -> None:
    sys.stdin.buffer.read()  # nothing is ever written: returns when rank 0 closes the pipe or exits
    os._exit(1)


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()
    process.wait()


def _last_line(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
