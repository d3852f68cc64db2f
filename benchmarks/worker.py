"""Each system in a process of its own, asleep between its turns: in one process, two thread pools keep each other off the cores."""

import time
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

import torch

from transom.planning.memory import raise_malloc_thresholds

SETTLE_SECONDS = 0.3
"""Seconds before each turn, in which the threads of the system before stop spinning."""


class Worker:
    """A system's works, made and run in a process of their own.

    Attributes:
        names: of the works.
    """

    def __init__(self, module: str, function: str, *arguments: Any, threads: int) -> None:
        """Start the process and let it call a module's function, which makes works by name, with torch set to ``threads``.

        The module is imported there only: what it loads would run threads of its own here.
        """
        context = get_context("spawn")
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_end, module, function, arguments, threads), daemon=True)
        self._process.start()
        child_end.close()
        self.names: list[Any] = self._receive()

    def run_once(self, name: Any) -> tuple[float, Any]:
        """Do a work once; return the seconds it took and what it returned."""
        time.sleep(SETTLE_SECONDS)
        self._pipe.send(name)
        seconds, result = self._receive()
        return seconds, result

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            raise RuntimeError("a system of the benchmark failed; its process has printed why") from None

    def __enter__(self) -> Self:
        """Use it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, module: str, function: str, arguments: tuple[Any, ...], threads: int) -> None:
    torch.set_num_threads(threads)
    raise_malloc_thresholds()  # as transom's training does; it serves the peers as well
    works = getattr(import_module(module), function)(*arguments)
    pipe.send(list(works))
    while True:
        work = works[pipe.recv()]
        start = time.perf_counter()
        result = work()
        pipe.send((time.perf_counter() - start, result))
