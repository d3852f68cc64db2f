"""Defers signals while PyTorch is imported."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM until the end of this context, in which PyTorch is imported.

    PyTorch ignores every exception that is raised while it imports NumPy, and continues with a partially imported module. Without this
    context, a signal received during that import would not stop the program, and would cause an error elsewhere.
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
