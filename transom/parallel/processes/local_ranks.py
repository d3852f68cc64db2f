"""Run a function on every rank of a gloo process group, in processes forked from one that has imported PyTorch already."""

import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from transom.parallel.processes.collectives import ignore_layout_warnings
from transom.parallel.processes.launcher import LOOPBACK_INTERFACE

PRELOADED = [
    "__main__",
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "transom.models.build",
    "torch.distributed.pipelining",
]
"""Modules that the processes find imported, beside that of their function."""

TIMEOUT = timedelta(seconds=120)
"""Timeout of a collective: ranks that wait for each other for ever fail instead."""

SECONDS_AFTER_FAILURE = 5.0
"""Seconds for which the other ranks may continue once one has failed; they fail with it, since its connections close."""

EXIT_SECONDS = 2.0
"""Seconds after which a process that no longer has anything to do is killed."""


class RankFailure(NamedTuple):
    """The end of a rank that has returned nothing.

    Attributes:
        rank: the rank.
        error: type and message of its exception, or how its process ended.
        traceback: the traceback; empty if the process has ended without one.
        seconds: time of the failure, by a clock that all ranks share.
    """

    rank: int
    error: str
    traceback: str = ""
    seconds: float = float("inf")


class RanksFailedError(RuntimeError):
    """Raised when ranks of ``run_on_ranks`` have failed; its message holds their tracebacks.

    Attributes:
        failures: the failures, first the ranks that were killed, then the earliest exceptions: the others may only have lost a connection.
    """

    def __init__(self, failures: Sequence[RankFailure]) -> None:
        """Set the failures, in any order."""
        self.failures = sorted(failures, key=lambda each: (each.traceback != "", each.seconds))
        super().__init__("\n".join(f"rank {each.rank}: {each.traceback or each.error}" for each in self.failures))


def run_on_ranks(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call ``function(rank, *args)`` on ``size`` ranks, with one thread each, and return the results in rank order.

    Function, arguments and results are pickled, so the function must be importable, and its results hold plain tensors, not ``DTensor``.

    Raises:
        RanksFailedError: a rank raised an exception, or its process has ended or cannot be started.
    """
    context = _context(function.__module__)
    processes, ends = list[BaseProcess](), list[Connection]()
    with tempfile.TemporaryDirectory(prefix="transom-ranks-") as folder:
        store = Path(folder) / "store"
        try:
            for rank in range(size):
                mine, its = context.Pipe()
                process: BaseProcess = context.Process(target=_run_rank, args=(its, rank, size, store, function, args), daemon=True)
                ends.append(mine)
                _start(process, rank)
                its.close()
                processes.append(process)
            results, failures = _receive(ends)
        except BaseException:  # such as Ctrl-C, which the ranks do not receive
            for process in processes:
                process.kill()
            raise
        finally:
            for end in ends:
                end.close()  # a rank that has sent its result exits
            for process in processes:
                process.join(EXIT_SECONDS)
                if process.is_alive():
                    process.kill()
                    process.join()
    if failures:
        raise RanksFailedError([_name_end(each, processes[each.rank]) for each in failures])
    return [results[rank] for rank in range(size)]


@cache
def _context(module: str) -> ForkServerContext | SpawnContext:
    """Return how processes are started; the server from which they are forked imports the module of the first function that runs."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, module])  # without effect if the server runs
    resource_tracker.ensure_running()  # its own start would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()  # server and ranks inherit that Ctrl-C is blocked: this process ends them
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def _start(process: BaseProcess, rank: int) -> None:
    """Start the process of a rank.

    Raises:
        RanksFailedError: it cannot be started.
    """
    try:
        process.start()
    except (EOFError, OSError) as error:  # the server was killed, or there are too many processes or open files
        raise RanksFailedError([RankFailure(rank, f"cannot be started ({type(error).__name__}: {error})")]) from error


def _receive(ends: Sequence[Connection]) -> tuple[dict[int, Any], list[RankFailure]]:
    """Receive the results of all ranks, by rank, and the failures; once a rank has failed, others have ``SECONDS_AFTER_FAILURE``."""
    results, failures, waiting = dict[int, Any](), list[RankFailure](), dict(enumerate(ends))
    deadline: float | None = None
    while waiting:
        ready = wait(waiting.values(), None if deadline is None else max(0.0, deadline - time.monotonic()))
        for rank, end in [(rank, end) for rank, end in waiting.items() if end in ready]:
            try:
                failure, result = end.recv()
            except EOFError:
                failure, result = RankFailure(rank, ""), None
            if failure is None:
                results[rank] = result
            else:
                failures.append(failure)
            del waiting[rank]
        if failures and deadline is None:
            deadline = time.monotonic() + SECONDS_AFTER_FAILURE
        if not ready:
            break
    return results, failures


def _name_end(failure: RankFailure, process: BaseProcess) -> RankFailure:
    """Return a failure with the end of its process, if it has no exception."""
    if failure.error:
        return failure
    code = process.exitcode
    return failure._replace(error=f"exited with code {code}" if code is None or code >= 0 else f"was killed by signal {-code}")


def _exit_with_first_process(end: Connection) -> None:
    end.poll(None)  # nothing is ever sent: returns when the first process closes its end, which it does when it has all results, or exits
    os._exit(1)


def _run_rank(end: Connection, rank: int, size: int, store: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if end.poll():  # the first process was interrupted while the server started; the store would be looked for until the timeout
        os._exit(1)
    threading.Thread(target=_exit_with_first_process, args=(end,), daemon=True).start()
    import torch
    from torch import distributed

    gc.freeze()
    torch.set_num_threads(1)
    ignore_layout_warnings()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE)
    try:
        distributed.init_process_group("gloo", init_method=store.as_uri(), rank=rank, world_size=size, timeout=TIMEOUT)
        result = function(rank, *args)
        distributed.barrier()
        distributed.destroy_process_group()
        end.send((None, result))
    except BaseException as error:  # noqa: BLE001 - it is raised again in the first process
        seconds = time.monotonic()
        end.send((RankFailure(rank, f"{type(error).__name__}: {error}", traceback.format_exc(), seconds), None))
        return  # the connections close, so that no other rank waits for this one
    end.poll(None)  # tensors are shared with the first process until it has read them
