"""Heartbeats: each worker sends them from a separate thread, and rank 0 kills a worker whose heartbeats stop.

A process that exits closes its connections, which the other ranks notice at once. A stopped process (SIGSTOP, a frozen container, a
debugger) keeps them open, and the other ranks would wait forever. The thread of a busy worker keeps sending, however long a step takes.
This module does not import PyTorch, so that a worker sends heartbeats before its slow imports.
"""

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

LIMIT = 60.0
"""Seconds without a heartbeat after which a worker is considered stopped."""

STARTING = 60.0
"""Minimum timeout until a worker is ready: loading PyTorch's libraries blocks the interpreter, and with it the heartbeat thread."""

BEATS = 12
"""Heartbeats per timeout interval."""

BEAT, READY = b".", b"ready\n"
"""Messages of a worker on its standard output: a heartbeat, and that it is ready to join the process group."""


def start_beating(interval: float) -> None:
    """Write a heartbeat to standard output every ``interval`` seconds until the process exits or the pipe is closed."""
    over = threading.Event()  # never set: the thread ends with the process

    def beat() -> None:
        with suppress(OSError):  # rank 0 has exited
            while os.write(1, BEAT):
                over.wait(interval)

    threading.Thread(target=beat, name="transom-heartbeat", daemon=True).start()


class Silence:
    """Seconds since each rank's last heartbeat, counting only time in which this process itself was running.

    Attributes:
        limits: timeout in seconds, by rank.
    """

    def __init__(self, limits: dict[int, float], tick: float) -> None:
        """Start at 0 s; ``advance`` is called every ``tick`` seconds, and longer gaps count as two ticks."""
        self.limits = limits
        self._tick = tick
        self._seconds = dict.fromkeys(limits, 0.0)

    def pass_time(self, seconds: float) -> None:
        """Add the seconds since the last call, at most two ticks."""
        for rank in self._seconds:
            self._seconds[rank] += min(seconds, 2 * self._tick)

    def hear(self, rank: int) -> None:
        """Reset the time of a rank after a heartbeat."""
        self._seconds[rank] = 0.0

    def forget(self, rank: int) -> None:
        """Stop timing a rank."""
        del self._seconds[rank]

    def too_long(self) -> list[tuple[int, float]]:
        """Return (rank, seconds) of every rank beyond its timeout."""
        return [(rank, seconds) for rank, seconds in self._seconds.items() if seconds > self.limits[rank]]


class Watch:
    """Receives the workers' heartbeats in a separate thread and kills a worker that times out.

    Attributes:
        silent: rank of the killed worker and its seconds without a heartbeat; None while all workers send.
    """

    def __init__(self, processes: Sequence["subprocess.Popen[bytes]"], limit: float, abandon: Callable[[], None]) -> None:
        """Monitor worker processes, whose ranks start at 1.

        Args:
            processes: workers that call ``start_beating``, with standard output in a pipe.
            limit: seconds without a heartbeat after which a worker is killed.
            abandon: makes the rendezvous fail in every process that still waits in it.
        """
        self.silent: tuple[int, float] | None = None
        self._processes = dict(enumerate(processes, 1))
        self._limit, self._tick, self._abandon = limit, limit / BEATS, abandon
        self._silence = Silence(dict.fromkeys(self._processes, max(limit, STARTING)), self._tick)
        self._said = dict.fromkeys(self._processes, b"")
        self._changed, self._ready, self._gone = threading.Condition(), set[int](), set[int]()
        self._joining = False
        self._ending, self._end = os.pipe()
        self._thread = threading.Thread(target=self._listen, name="transom-watch", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> bool:
        """Wait until all workers are ready or one has exited; return whether all are ready."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone or len(self._ready) == len(self._processes))
            return not self._gone

    @contextmanager
    def joining(self) -> Iterator[None]:
        """Mark the block in which the process group is joined: without connections yet, the exit of a process would go unnoticed."""
        self._joining = True
        try:
            yield
        finally:
            self._joining = False

    def close(self) -> None:
        """Stop the monitor thread."""
        os.close(self._end)
        self._thread.join()
        os.close(self._ending)

    def _listen(self) -> None:
        before, stuck = time.monotonic(), 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._ending, selectors.EVENT_READ)
            for rank, process in self._processes.items():
                assert process.stdout is not None
                selector.register(process.stdout.fileno(), selectors.EVENT_READ, rank)
            while True:
                found = selector.select(self._tick)
                now = time.monotonic()
                self._silence.pass_time(now - before)
                for key, _ in found:
                    if key.fd == self._ending:
                        return
                    if not self._hear(key.data, os.read(key.fd, 4096)):
                        selector.unregister(key.fd)
                for rank, seconds in self._silence.too_long():
                    self.silent = self.silent or (rank, seconds)
                    self._processes[rank].kill()  # also ends a stopped process and closes its pipe and connections
                stuck = stuck + now - before if self._gone and self._joining else 0.0
                if stuck > 2 * self._tick:  # not at once: this process may be about to notice it
                    self._abandon()
                before = now

    def _hear(self, rank: int, said: bytes) -> bool:
        """Process bytes from a worker; return whether its pipe is still open."""
        with self._changed:
            self._changed.notify_all()
            if not said:
                self._silence.forget(rank)
                self._gone.add(rank)
                return False
            self._silence.hear(rank)
            self._said[rank] = (self._said[rank] + said)[-4096:]
            if READY in self._said[rank]:
                self._ready.add(rank)
                self._silence.limits[rank] = self._limit
            return True
