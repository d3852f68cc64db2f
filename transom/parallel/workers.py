"""The other processes of a run on one machine: begun by its first process, and never outliving it."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import transom
from transom.parallel.world import ALONE, ProcessLostError, World, joined
from transom.planning.process import environment_with

READY = b"ready\n"
"""What a worker says when it has all that it needs and is about to join."""

BEGIN = "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
"""How a worker begins: it finds this very package, behind all else that it could find, whatever folder it is in."""

LOOPBACK = "lo" if sys.platform == "linux" else "lo0"
"""The interface that the processes talk over: this machine's own."""


@contextmanager
def working_together(module: str, arguments: Sequence[str], size: int, threads: int) -> Iterator[World]:
    """Start ``size - 1`` processes of a module and join them; they end with this one, however it ends.

    Args:
        module: run as with ``python -m MODULE RANK SIZE MEETING ARGUMENTS``; it calls ``worker``.
        arguments: the rest of its command line.
        size: how many processes there are with this one.
        threads: of each.

    Raises:
        ProcessLostError: one of them ended before its time; its last words are in the message.
    """
    if size == 1:
        yield ALONE
        return
    home = str(Path(transom.__file__).parents[1])
    with ExitStack() as stack:
        stack.enter_context(environment_with({"GLOO_SOCKET_IFNAME": LOOPBACK}))
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="transom-")))
        meeting = folder / "meeting"
        processes, logs = [], [folder / f"{rank}.log" for rank in range(1, size)]
        for rank, log in enumerate(logs, 1):
            command = [sys.executable, "-P", "-c", BEGIN, home, module, str(rank), str(size), str(meeting), *arguments]
            with log.open("wb") as errors:
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment)
            stack.callback(_end, process)
            processes.append(process)
        try:
            for process in processes:
                assert process.stdout is not None
                if process.stdout.readline() != READY:
                    raise ProcessLostError(f"expected {size} processes, found that one could not begin")
            with joined(0, size, meeting) as world:
                yield world
        except ProcessLostError as error:
            for process in processes:
                _end(process)
            words = " ".join(line for log in logs for line in _last_line(log))
            raise ProcessLostError(f"{error}; set training.processes = 1 to do without" + (f" ({words})" if words else "")) from error


@contextmanager
def worker(rank: int, size: int, meeting: Path) -> Iterator[World]:
    """Join the run as one of its workers: deaf to signals, which are for the first process, and gone when that is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_die_with_the_first, daemon=True).start()
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    with joined(rank, size, meeting) as world:
        yield world


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
