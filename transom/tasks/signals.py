"""Handling of Ctrl-C and SIGTERM: both end a command, and both are deferred while PyTorch is imported."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

RESEND_SECONDS = 0.05
"""Time after which a signal is sent again if Python has discarded the exception of its handler."""


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


class SignalExits:
    """Context manager in which Ctrl-C raises KeyboardInterrupt and SIGTERM raises SystemExit(143), even where the exception would be lost.

    Python discards exceptions that are raised in weakref callbacks, in ``__del__`` and during garbage collection; the signal is then sent
    again. Some libraries wrap the exception in one of their own; the original is then raised at the end of the context.
    """

    def __init__(self) -> None:
        """Initialize without a received signal."""
        self._received = 0
        self._resends: list[threading.Timer] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        """Install the handlers, but keep one for Ctrl-C that is not Python's own, such as that of a background job, which ignores it."""
        self._hook, sys.unraisablehook = sys.unraisablehook, self._resend
        for number in (signal.SIGINT, signal.SIGTERM):
            if number == signal.SIGTERM or signal.getsignal(number) is signal.default_int_handler:
                self._before[number] = signal.signal(number, self._raise)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Restore the handlers, and raise the exception of a signal that has not ended the context."""
        waiting = [resend for resend in self._resends if resend.is_alive()]
        try:
            for resend in waiting:
                resend.cancel()
                resend.join()
        finally:
            sys.unraisablehook = self._hook
            for number, handler in self._before.items():
                signal.signal(number, handler)
        if self._received and (waiting or isinstance(error, Exception)):
            self._raise(self._received, None)

    def _raise(self, number: int, _frame: FrameType | None) -> None:
        self._received = number
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def _resend(self, discarded: "sys.UnraisableHookArgs") -> None:
        """Send a signal again if the discarded exception is that of its handler; a signal sent from here would be discarded as well."""
        if isinstance(discarded.exc_value, KeyboardInterrupt):
            self._received = signal.SIGINT
        elif not isinstance(discarded.exc_value, SystemExit) or not self._received:
            self._hook(discarded)
            return
        resend = threading.Timer(RESEND_SECONDS, signal.pthread_kill, [threading.main_thread().ident, self._received])
        self._resends.append(resend)
        resend.daemon = True
        resend.start()
