"""Launch the worker processes of a run on one machine; they are started by rank 0 and never outlive it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

import transom
from transom.parallel.processes import heartbeat
from transom.parallel.processes.collectives import KEPT, SINGLE_PROCESS, ProcessLostError, World, join_process_group
from transom.parallel.processes.store_heartbeat import end_process, store_heartbeat
from transom.parallel.processes.torchrun import torchrun_rank
from transom.parallel.processes.torchrun_store import JOIN_TIMEOUT, meet
from transom.planning.process_state import environment_defaults

WORKER_BOOTSTRAP = (
    "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path.append(sys.argv.pop(1));"
    " from transom.parallel.processes.heartbeat import start_heartbeat;"
    " start_heartbeat(float(sys.argv.pop(1))); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
"""Program of a worker: ignore Ctrl-C, which rank 0 handles; append the folder of this package to ``sys.path``; start the heartbeat; run the
module."""

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that ask a run to stop; Windows has no SIGHUP."""

LOST_CONNECTION = "Connection closed by peer"
"""Part of the message with which gloo's collectives fail when a process of the group has exited."""

LOOPBACK_INTERFACE = "lo" if sys.platform == "linux" else "lo0"
"""Network interface of the process group: the loopback interface."""


@contextmanager
def launch_processes(module: str, arguments: Sequence[str], size: int, threads: int, timeout: float | None = None) -> Iterator[World]:
    """Start ``size - 1`` worker processes and join their process group as rank 0; the workers exit with this process.

    If torchrun has started the processes, join them instead, and send them the arguments.

    Args:
        module: name of the module that workers run, as in ``python -m MODULE RANK SIZE RENDEZVOUS ARGUMENTS``; the module must call
            ``join_as_worker``.
        arguments: ARGUMENTS of this command line.
        size: number of processes, this one included.
        threads: threads per worker.
        timeout: seconds without a heartbeat after which a worker is killed; ``heartbeat.TIMEOUT`` by default.

    Raises:
        ProcessLostError: a worker exited early or stopped; the message contains the last line of its log.
    """
    if size == 1:
        yield SINGLE_PROCESS
        return
    if torchrun_rank() is not None:
        with join_torchrun() as world:
            world.broadcast_text(json.dumps(arguments))
            yield world
        return
    package_root, timeout = str(Path(transom.__file__).parents[1]), heartbeat.TIMEOUT if timeout is None else timeout
    with ExitStack() as stack:
        stack.enter_context(environment_defaults({"GLOO_SOCKET_IFNAME": LOOPBACK_INTERFACE}))
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="transom-")))
        rendezvous = folder / "rendezvous" / "store"
        rendezvous.parent.mkdir()
        processes, logs = [], [folder / f"{rank}.log" for rank in range(1, size)]
        for rank, log in enumerate(logs, 1):
            bootstrap = [sys.executable, "-P", "-c", WORKER_BOOTSTRAP, package_root, str(timeout / heartbeat.BEATS_PER_TIMEOUT)]
            command = [*bootstrap, module, str(rank), str(size), str(rendezvous), *arguments]
            with log.open("wb") as errors:
                own = {**environment, "LOCAL_RANK": str(rank)}
                process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=own)
            stack.callback(_kill_worker, process)
            processes.append(process)
        end_run = _end_run if torch.cuda.is_available() else None  # a collective of NCCL would wait for a process that has exited
        monitor = heartbeat.HeartbeatMonitor(processes, timeout, lambda: _break_rendezvous(rendezvous), end_run)
        stack.callback(monitor.close)
        try:
            if not monitor.wait_until_ready():
                raise ProcessLostError(f"expected {size} running processes, found that one did not start")
            with ExitStack() as group:
                with monitor.in_rendezvous():
                    world = group.enter_context(join_process_group(rendezvous.as_uri(), 0, size))
                yield world
        except (ProcessLostError, RuntimeError) as error:  # gloo raises RuntimeError in the collectives of PyTorch's own layouts
            exited = monitor.exited_ranks()
            if not isinstance(error, ProcessLostError) and not exited:
                raise
            signals = [] if monitor.timed_out_rank else [line for rank in exited for line in _killed_by(rank, processes[rank - 1].wait())]
            for process in processes:
                process.kill()
                process.wait()
            last_lines = " ".join([*signals, *(line for log in logs for line in _last_line(log))])
            lost = error if isinstance(error, ProcessLostError) else f"expected {size} running processes, found that one has exited; {KEPT}"
            reason = _stopped_message(*monitor.timed_out_rank) if monitor.timed_out_rank else lost
            advice = "a run without [parallel] needs no other process"
            raise ProcessLostError(f"{reason}; {advice}" + (f" ({last_lines})" if last_lines else "")) from error


@contextmanager
def join_torchrun() -> Iterator[World]:
    """Join the process group of the processes that torchrun has started."""
    place = torchrun_rank()
    assert place is not None, "torchrun has started this process"
    with ExitStack() as stack:
        if place.rank > 0:  # while it waits for rank 0, which may have ended with an error, no handler in Python would run
            stack.enter_context(_signals_restored())
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        store, name = meet(place)
        stack.enter_context(store_heartbeat(place, name))
        with _limited_connecting():
            world = stack.enter_context(join_process_group(store, place.rank, place.size))
        if place.rank > 0:
            ignore_signals()
        try:
            yield world
        except RuntimeError as error:  # gloo raises it in the collectives of PyTorch's own layouts
            if LOST_CONNECTION not in str(error):
                raise
            raise ProcessLostError(f"expected {place.size} running processes, found that one has exited; {KEPT}") from error


def ignore_signals() -> None:
    """Ignore the signals that ask a run to stop, which rank 0 handles for all."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _signals_restored() -> Iterator[None]:
    """Restore the handlers of the signals that ask a run to stop after the block."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def join_as_worker(rank: int, size: int, rendezvous: Path) -> Iterator[World]:
    """Join the process group as a worker that ignores signals and exits when rank 0 exits."""
    ignore_signals()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    sys.stdout.buffer.write(heartbeat.READY)
    sys.stdout.flush()
    with join_process_group(rendezvous.as_uri(), rank, size) as world:
        yield world


@contextmanager
def _limited_connecting() -> Iterator[None]:
    """End this process if the block, in which the ranks connect, takes too long: gloo would try for as long as a collective may take."""
    seconds = JOIN_TIMEOUT.total_seconds()
    message = (
        f"expected connections to the other processes within {seconds:.0f} s, found none; set GLOO_SOCKET_IFNAME to the network interface"
        " of this host that the others reach"
    )
    timer = threading.Timer(seconds, end_process, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _stopped_message(rank: int, seconds: float) -> str:
    """Return the message on a worker that has sent no heartbeat for some seconds."""
    return (
        f"expected heartbeats from all processes of the run, found none from rank {rank} for {seconds:.0f} s: it was stopped or gets no"
        f" CPU time; {KEPT}"
    )


def _end_run(rank: int) -> None:
    end_process(f"expected all processes of the run, found that rank {rank} has exited; {KEPT}")


def _break_rendezvous(rendezvous: Path) -> None:
    """Make ranks that wait in the rendezvous fail at once instead of after the timeout, by replacing its folder with a file."""
    if rendezvous.parent.is_dir():
        shutil.rmtree(rendezvous.parent)
        rendezvous.parent.touch()  # opening a path below a file is an error; a missing file would be polled


def _exit_with_parent() -> None:
    sys.stdin.buffer.read()  # nothing is ever written: returns when rank 0 closes the pipe or exits
    os._exit(1)


def _kill_worker(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        assert stream is not None
        stream.close()
    process.wait()


def _killed_by(rank: int, code: int) -> list[str]:
    return [f"rank {rank} was killed by {signal.Signals(-code).name}"] if code < 0 else []


def _last_line(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines()[-1:]
