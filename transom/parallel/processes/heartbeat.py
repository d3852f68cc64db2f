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

TIMEOUT = 50.0
"""Seconds without a heartbeat after which a worker is considered stopped, so that it is named within a minute."""

STARTUP_TIMEOUT = 60.0
"""Minimum timeout until a worker is ready: loading PyTorch's libraries blocks the interpreter, and with it the heartbeat thread."""

BEATS_PER_TIMEOUT = 12
"""Heartbeats per timeout interval."""

BEAT, READY = b".", b"ready\n"
"""Messages that a worker writes to its standard output: a heartbeat, and "ready to join the process group"."""


def start_heartbeat(interval: float) -> None:
    """Write a heartbeat to standard output every ``interval`` seconds until the process exits or the pipe is closed."""
    over = threading.Event()  # never set: the thread ends with the process

    def beat() -> None:
        with suppress(OSError):  # rank 0 has exited
            while os.write(1, BEAT):
                over.wait(interval)

    threading.Thread(target=beat, name="transom-heartbeat", daemon=True).start()


class SilenceTimer:
    """Seconds since each rank's last heartbeat, counting only time in which this process itself was running.

    Attributes:
        timeouts: timeout in seconds, by rank.
    """

    def __init__(self, timeouts: dict[int, float], tick: float) -> None:
        """Start all ranks at 0 s. The caller calls ``advance`` about every ``tick`` seconds; a longer gap counts as two ticks at most."""
        self.timeouts = timeouts
        self._tick = tick
        self._seconds = dict.fromkeys(timeouts, 0.0)

    def advance(self, seconds: float) -> None:
        """Add the seconds since the last call, at most two ticks."""
        for rank in self._seconds:
            self._seconds[rank] += min(seconds, 2 * self._tick)

    def reset(self, rank: int) -> None:
        """Reset the time of a rank to 0 s, because a heartbeat arrived."""
        self._seconds[rank] = 0.0

    def stop_timing(self, rank: int) -> None:
        del self._seconds[rank]

    def timed_out(self) -> list[tuple[int, float]]:
        """Return (rank, seconds) of every rank beyond its timeout."""
        return [(rank, seconds) for rank, seconds in self._seconds.items() if seconds > self.timeouts[rank]]


class HeartbeatMonitor:
    """Receives the workers' heartbeats in a separate thread and kills a worker that times out.

    Attributes:
        timed_out_rank: rank of the killed worker and its seconds without a heartbeat; None while all workers send.
    """

    def __init__(
        self,
        processes: Sequence["subprocess.Popen[bytes]"],
        timeout: float,
        abort_rendezvous: Callable[[], None],
        end_run: Callable[[int], None] | None = None,
    ) -> None:
        """Monitor worker processes, whose ranks start at 1.

        Args:
            processes: workers that call ``start_heartbeat``, with standard output in a pipe.
            timeout: seconds without a heartbeat after which a worker is killed.
            abort_rendezvous: makes the rendezvous fail in every process that still waits in it.
            end_run: called with the rank of a worker that has failed, if this monitor is not closed soon after; None if a collective with
                that worker fails by itself.
        """
        self.timed_out_rank: tuple[int, float] | None = None
        self._processes = dict(enumerate(processes, 1))
        self._timeout, self._tick, self._abort_rendezvous = timeout, timeout / BEATS_PER_TIMEOUT, abort_rendezvous
        self._timer = SilenceTimer(dict.fromkeys(self._processes, max(timeout, STARTUP_TIMEOUT)), self._tick)
        self._received = dict.fromkeys(self._processes, b"")
        self._changed, self._ready, self._exited = threading.Condition(), set[int](), set[int]()
        self._in_rendezvous, self._end_run = False, end_run
        self._close_reader, self._close_writer = os.pipe()
        self._thread = threading.Thread(target=self._listen, name="transom-watch", daemon=True)
        self._thread.start()

    def wait_until_ready(self) -> bool:
        """Wait until all workers are ready or one has exited; return whether all are ready."""
        with self._changed:
            self._changed.wait_for(lambda: self._exited or len(self._ready) == len(self._processes))
            return not self._exited

    def exited_ranks(self) -> list[int]:
        """Return the workers that have exited, for the first of which this waits a second: its closed connections may be noticed first."""
        with self._changed:
            self._changed.wait_for(lambda: self._exited, timeout=1.0)
            return sorted(self._exited)

    @contextmanager
    def in_rendezvous(self) -> Iterator[None]:
        """Mark the block in which the process group is joined.

        If a worker exits during the block, the rendezvous is aborted: the other processes have no connection to that worker yet and would
        wait for it.
        """
        self._in_rendezvous = True
        try:
            yield
        finally:
            self._in_rendezvous = False

    def close(self) -> None:
        """Stop the monitor thread."""
        os.close(self._close_writer)
        self._thread.join()
        os.close(self._close_reader)

    def _listen(self) -> None:
        before, seconds_blocked, seconds_lost = time.monotonic(), 0.0, 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._close_reader, selectors.EVENT_READ)
            for rank, process in self._processes.items():
                assert process.stdout is not None
                selector.register(process.stdout.fileno(), selectors.EVENT_READ, rank)
            while True:
                found = selector.select(self._tick)
                now = time.monotonic()
                self._timer.advance(now - before)
                for key, _ in found:
                    if key.fd == self._close_reader:
                        return
                    if not self._receive(key.data, os.read(key.fd, 4096)):
                        selector.unregister(key.fd)
                for rank, seconds in self._timer.timed_out():
                    self.timed_out_rank = self.timed_out_rank or (rank, seconds)
                    self._processes[rank].kill()  # also ends a stopped process and closes its pipe and connections
                seconds_blocked = seconds_blocked + now - before if self._exited and self._in_rendezvous else 0.0
                if seconds_blocked > 2 * self._tick:  # not at once: this process may be about to notice it
                    self._abort_rendezvous()
                failed = [rank for rank in self._exited if self._processes[rank].poll()]
                seconds_lost = seconds_lost + now - before if failed else 0.0
                if seconds_lost > 2 * self._tick and self._end_run is not None:
                    self._end_run(failed[0])
                before = now

    def _receive(self, rank: int, received: bytes) -> bool:
        """Process bytes from a worker; return whether its pipe is still open."""
        with self._changed:
            self._changed.notify_all()
            if not received:
                self._timer.stop_timing(rank)
                self._exited.add(rank)
                return False
            self._timer.reset(rank)
            self._received[rank] = (self._received[rank] + received)[-4096:]
            if READY in self._received[rank]:
                self._ready.add(rank)
                self._timer.timeouts[rank] = self._timeout
            return True
