"""Imports PyTorch without losing signals."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the imports in this context are done.

    PyTorch swallows exceptions raised while it imports NumPy and continues with a partially imported module: a stop request would be
    lost and cause an error elsewhere.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])
