"""Run each system in its own process, idle between its turns, because the thread pools of two systems in one process compete for cores."""

import gc
import signal
import time
from collections.abc import Callable
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import torch

from transom.planning.freed_memory import keep_freed_memory, trim_malloc
from transom.planning.memory import peak_memory, reset_peak_memory, used_memory

_CPU = torch.device("cpu")
_MEMORY = "memory"

SETTLE_SECONDS = 0.3
"""Pause before each turn, in seconds, in which the previous system's threads stop spinning."""

EXIT_SECONDS = 10.0
"""Time to wait for the exit status of a process that has closed its end of the pipe."""


class Worker:
    """A process that builds and runs the workloads of one system.

    Attributes:
        names: names of the workloads.
    """

    def __init__(self, module: str, function: str, *arguments: Any, threads: int, only: Any = None) -> None:
        """Start the process and call ``module.function(*arguments)`` in it, which returns workloads by name.

        The module is imported only in the new process, because the libraries it loads start threads.

        Args:
            module: dotted name of the module.
            function: name of the function.
            arguments: arguments of the function.
            threads: torch threads of the process.
            only: name of the workload to keep; None keeps all.
        """
        context, self._source = get_context("spawn"), f"{module}.{function}"
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end, module, function, arguments, threads, only), daemon=True)
        self._process.start()
        child_end.close()
        self.names: list[Any] = self._receive()

    def run_once(self, name: Any) -> tuple[float, Any]:
        """Run a workload once; return its duration in seconds and its result."""
        time.sleep(SETTLE_SECONDS)
        self._pipe.send(name)
        seconds, result = self._receive()
        return seconds, result

    def measure_memory(self, name: Any) -> int:
        """Run a workload twice; return the bytes that the second run held at most beyond those held before it, on Linux only."""
        self._pipe.send((_MEMORY, name))
        found: int = self._receive()
        return found

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            self._process.join(EXIT_SECONDS)
            code = self._process.exitcode
            killed = code is not None and code < 0
            cause = f"signal {signal.Signals(-code).name}" if killed else "an error, whose traceback its process printed"
            raise RuntimeError(f"{self._source}: expected a result, found that the process ended by {cause}") from None

    def __enter__(self) -> Self:
        """Return the worker."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, module: str, function: str, arguments: tuple[Any, ...], threads: int, only: Any) -> None:
    torch.set_num_threads(threads)
    keep_freed_memory()  # as in transom's training; the peers benefit too
    workloads = getattr(import_module(module), function)(*arguments)
    if only is not None:
        workloads = {only: workloads[only]}
    pipe.send(list(workloads))
    while True:
        match pipe.recv():
            case (first, name) if first == _MEMORY:
                pipe.send(_measure_memory(workloads[name]))
            case name:
                start = time.perf_counter()
                result = workloads[name]()
                pipe.send((time.perf_counter() - start, result))


def _measure_memory(workload: Callable[[], object]) -> int:
    workload()  # imports, compiles, allocates the state of the optimizer
    gc.collect()
    trim_malloc()
    before = used_memory(_CPU)
    reset_peak_memory(_CPU)
    workload()
    return peak_memory(_CPU) - before
