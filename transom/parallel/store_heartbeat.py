"""Heartbeats of the processes that torchrun has started: each counts up a number in a store and watches that of the next rank."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from transom.parallel import heartbeat
from transom.parallel.collectives import KEPT
from transom.parallel.heartbeat import BEATS_PER_TIMEOUT, SilenceTimer
from transom.parallel.torchrun import TorchrunRank
from transom.parallel.torchrun_store import torchrun_store

_ENDED = -(2**62)
"""Added to the number of a rank that has left the run."""


@contextmanager
def store_heartbeat(place: TorchrunRank, name: str, timeout: float | None = None) -> Iterator[None]:
    """Send heartbeats during a block, and end this process if those of the next rank stop, which torchrun answers by ending all.

    The store is that of torchrun. Where a batch system has set the environment variables instead, rank 0 hosts it, and that rank 0 stops is
    not noticed.

    Args:
        place: place of this process.
        name: name of this start of the run, different from those of starts before.
        timeout: seconds without a heartbeat after which a rank is considered stopped; ``heartbeat.TIMEOUT`` by default.
    """
    timeout = heartbeat.TIMEOUT if timeout is None else timeout
    over = threading.Event()
    thread = threading.Thread(target=_beat, args=(place, timeout, name, over), name="transom-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout / BEATS_PER_TIMEOUT)


def stopped_message(rank: int, seconds: float) -> str:
    """Return the message on a rank that has sent no heartbeat for some seconds."""
    return (
        f"expected heartbeats from all processes of the run, found none from rank {rank} for {seconds:.0f} s: it was stopped or gets no"
        f" CPU time; {KEPT}"
    )


def _beat(place: TorchrunRank, timeout: float, name: str, over: threading.Event) -> None:
    watched, tick = (place.rank + 1) % place.size, timeout / BEATS_PER_TIMEOUT
    timer, seen, before = SilenceTimer({watched: timeout}, tick), 0, time.monotonic()
    with suppress(RuntimeError):  # the store has gone with its process, which ends the run in other ways
        store = torchrun_store()
        while not over.wait(tick):
            store.add(f"transom-heartbeat-{name}-{place.rank}", 1)
            beats, now = store.add(f"transom-heartbeat-{name}-{watched}", 0), time.monotonic()
            timer.advance(now - before)
            before = now
            if beats <= 0 or beats != seen:  # not begun, ended, or alive
                timer.reset(watched)
            seen = beats
            for rank, seconds in timer.timed_out():
                sys.stderr.write(f"error: {stopped_message(rank, seconds)}\n")
                sys.stderr.flush()
                os._exit(2)  # the main thread waits in a collective operation
        store.add(f"transom-heartbeat-{name}-{place.rank}", _ENDED)
