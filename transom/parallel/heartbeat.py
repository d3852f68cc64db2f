"""Heartbeats: each worker sends them from a thread of its own, and the first process ends a worker that has stopped sending.

A process that dies closes its connections, which the others notice at once. One that is stopped (SIGSTOP, a frozen container, a debugger)
keeps them open, and the others would wait for it for ever. A busy worker's thread goes on sending, however long a step takes. This module
imports no PyTorch, so that a worker begins to send before it imports anything large.
"""

import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

LIMIT = 60.0
"""Seconds of silence after which a worker counts as stopped."""

STARTING = 60.0
"""The same, at the least, until a worker is ready: loading PyTorch's libraries holds the interpreter, and with it the heartbeats."""

BEATS = 12
"""Heartbeats in the time after which a worker counts as stopped."""

BEAT, READY = b".", b"ready\n"
"""What a worker writes on its standard output: a heartbeat, and that it has all it needs and is about to join."""


def start_beating(interval: float) -> None:
    """Send a heartbeat on standard output every ``interval`` seconds, until the process ends or nobody listens any more."""
    over = threading.Event()  # never set: the thread ends with the process

    def beat() -> None:
        with suppress(OSError):  # the first process is gone
            while os.write(1, BEAT):
                over.wait(interval)

    threading.Thread(target=beat, name="transom-heartbeat", daemon=True).start()


class Silence:
    """How long each rank has been silent, in time that this process itself was running.

    Attributes:
        limits: seconds that each rank may be silent.
    """

    def __init__(self, limits: dict[int, float], tick: float) -> None:
        """Begin to count; this process looks every ``tick`` seconds, and of a longer pause of its own counts only two of them."""
        self.limits = limits
        self._tick = tick
        self._seconds = dict.fromkeys(limits, 0.0)

    def pass_time(self, seconds: float) -> None:
        """Count the time since the last look."""
        for rank in self._seconds:
            self._seconds[rank] += min(seconds, 2 * self._tick)

    def hear(self, rank: int) -> None:
        """Note a sign of life."""
        self._seconds[rank] = 0.0

    def forget(self, rank: int) -> None:
        """Expect nothing more of a rank."""
        del self._seconds[rank]

    def too_long(self) -> list[tuple[int, float]]:
        """Return the ranks that were silent for longer than their limits, and for how long."""
        return [(rank, seconds) for rank, seconds in self._seconds.items() if seconds > self.limits[rank]]


class Watch:
    """Listens to the workers, in a thread of its own, and ends one that is silent for too long.

    Attributes:
        silent: the rank that was ended and the seconds that it had been silent; None while all send.
    """

    def __init__(self, processes: Sequence["subprocess.Popen[bytes]"], limit: float, abandon: Callable[[], None]) -> None:
        """Listen to processes whose ranks begin at 1.

        Args:
            processes: begun with ``start_beating`` and their standard output in a pipe.
            limit: seconds of silence after which one of them is ended.
            abandon: makes joining fail in all processes that wait for one that is gone.
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
        """Wait until all are ready, or one is gone; tell which."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone or len(self._ready) == len(self._processes))
            return not self._gone

    @contextmanager
    def joining(self) -> Iterator[None]:
        """Join the others within: only there would the loss of a process, which has no connection yet, go unnoticed."""
        self._joining = True
        try:
            yield
        finally:
            self._joining = False

    def close(self) -> None:
        """Listen no more."""
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
                    self._processes[rank].kill()  # ends a stopped process too, and with it its pipe and its connections
                stuck = stuck + now - before if self._gone and self._joining else 0.0
                if stuck > 2 * self._tick:  # not at once: this process may be about to notice by itself
                    self._abandon()
                before = now

    def _hear(self, rank: int, said: bytes) -> bool:
        """Take in what a worker said; tell whether it may say more."""
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
