"""Importing what a verb needs: quickly, and with no signal lost."""

import gc
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait for the end of what is imported here.

    PyTorch swallows whatever is raised while it imports NumPy, and goes on with a half of it: the stop that was asked for would be
    lost, and end in a fault somewhere else.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    before = {number: signal.signal(number, lambda number, _: held.append(number)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if held:
        signal.raise_signal(held[0])


@contextmanager
def lasting_imports() -> Iterator[None]:
    """Hold signals back, and keep the garbage collector off what is imported here: PyTorch's million objects live as long as the process.

    Looking through them while more are made, and once more at the end of the process, takes about a fifth of a short command's time.
    """
    with signals_held():
        gc.disable()
        try:
            yield
        finally:
            gc.freeze()
            gc.enable()
