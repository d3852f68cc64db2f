"""Heartbeats of the processes that torchrun has started: each counts up a number in a store and watches that of the next rank."""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from torch import distributed

from transom.parallel.processes import heartbeat
from transom.parallel.processes.collectives import KEPT, ProcessLostError
from transom.parallel.processes.heartbeat import BEATS_PER_TIMEOUT, SilenceTimer
from transom.parallel.processes.torchrun import TorchrunRank
from transom.parallel.processes.torchrun_store import torchrun_store

_ENDED = -(2**62)
"""Added to the number of a rank that has left the run."""


@contextmanager
def store_heartbeat(place: TorchrunRank, name: str, timeout: float | None = None) -> Iterator[None]:
    """Send heartbeats during a block; end this process if those of the next rank stop, or if the store no longer answers.

    All ranks have met before. torchrun answers the end of a process by ending all. The store is that of torchrun. Where a batch system has
    set the environment variables instead, rank 0 hosts it, and that rank 0 stops is not noticed.

    Args:
        place: place of this process.
        name: name of this start of the run, different from those of starts before.
        timeout: seconds without a heartbeat after which a rank is considered stopped; ``heartbeat.TIMEOUT`` by default.
    """
    beats = _StoreHeartbeat(place, name, heartbeat.TIMEOUT if timeout is None else timeout)
    try:
        yield
    finally:
        beats.close()


def silent_message(silent: Mapping[int, str], seconds: float) -> str:
    """Return the message on ranks that have sent no heartbeat for some seconds; ``silent`` has their hosts, "" where unknown.

    >>> silent_message({2: "b", 3: ""}, 52)[:90]
    'expected heartbeats from all processes of the run, found none from rank 2 on b, rank 3 for'
    """
    ranks = ", ".join(f"rank {rank}{f' on {host}' if host else ''}" for rank, host in silent.items())
    return (
        f"expected heartbeats from all processes of the run, found none from {ranks} for {seconds:.0f} s: stopped, without CPU time, or cut"
        f" off from the network; {KEPT}"
    )


def unreachable_message(seconds: float) -> str:
    """Return the message on a store that has not answered for some seconds."""
    return (
        f"expected answers from {os.environ['MASTER_ADDR']}, the host of rank 0, found none for {seconds:.0f} s: stopped, or cut off from"
        f" the network; {KEPT}"
    )


class _StoreHeartbeat:
    """Sends and watches heartbeats in two threads.

    One talks to the store. The other notices if that waits too long for an answer: a lost connection may take a quarter of an hour to fail.
    """

    def __init__(self, place: TorchrunRank, name: str, timeout: float) -> None:
        """Start the threads; the arguments are those of ``store_heartbeat``."""
        self._place, self._name, self._timeout, self._tick = place, name, timeout, timeout / BEATS_PER_TIMEOUT
        patience = timeout + (2 * self._tick if place.local_rank else 0)  # one process of a host speaks
        self._answers, self._over = SilenceTimer({place.rank: patience}, self._tick), threading.Event()
        self._threads = [threading.Thread(target=each, name="transom-heartbeat", daemon=True) for each in (self._beat, self._watch_store)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Report that this rank leaves the run, and end the threads."""
        self._over.set()
        for thread in self._threads:
            thread.join(self._tick)

    def _watch_store(self) -> None:
        before = time.monotonic()
        while not self._over.wait(self._tick):
            now = time.monotonic()
            self._answers.advance(now - before)
            before = now
            for _, seconds in self._answers.timed_out():
                end_process("" if self._place.local_rank else unreachable_message(seconds))

    def _beat(self) -> None:
        rank, watched = self._place.rank, (self._place.rank + 1) % self._place.size
        timer, seen, before = SilenceTimer({watched: self._timeout / 2}, self._tick), 0, time.monotonic()
        counts: dict[int, int] = {}
        with suppress(RuntimeError, ProcessLostError):  # the store has gone with its process, which ends the run in other ways
            store = torchrun_store()
            store.set(self._key("host", rank), os.uname().nodename)
            while not self._over.wait(self._tick):
                self._count(store, rank, 1)
                beats, now = self._count(store, watched), time.monotonic()
                self._answers.reset(rank)
                timer.advance(now - before)
                before = now
                if beats < 0 or beats != seen:  # ended, or alive
                    timer.reset(watched)
                    timer.timeouts[watched], counts = self._timeout / 2, {}
                seen = beats
                for _, seconds in timer.timed_out():
                    if counts:
                        silent = [each for each, count in counts.items() if 0 <= count == self._count(store, each)]
                        end_process(silent_message({each: self._host(store, each) for each in silent}, seconds))
                    counts = {each: self._count(store, each) for each in range(self._place.size) if each != rank}
                    timer.timeouts[watched] = self._timeout
            self._count(store, rank, _ENDED)
        self._over.set()

    def _count(self, store: distributed.Store, rank: int, added: int = 0) -> int:  # type: ignore[name-defined]  # missing from the stubs
        """Return the number of heartbeats of a rank, after adding to it."""
        return int(store.add(self._key("heartbeat", rank), added))

    def _host(self, store: distributed.Store, rank: int) -> str:  # type: ignore[name-defined]
        """Return the name of a rank's host; empty if the rank has not begun."""
        key = self._key("host", rank)
        return store.get(key).decode() if store.check([key]) else ""

    def _key(self, kind: str, rank: int) -> str:
        return f"transom-{kind}-{self._name}-{rank}"


def end_process(message: str) -> None:
    """End this process, while its main thread waits in a collective operation, with an error message unless another process writes it."""
    sys.stderr.write(f"error: {message}\n" if message else "")
    sys.stderr.flush()
    os._exit(2)
