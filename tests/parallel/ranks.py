"""Run a function on every rank of a gloo process group, in processes forked from one that has imported PyTorch already."""

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "transom.models.build"]
)

TIMEOUT = timedelta(seconds=120)
"""Timeout of a collective: a test in which a rank waits for ever fails instead."""


def run_on_ranks(size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call ``function(rank, *args)`` on ``size`` ranks, with one thread each, and return the results in rank order.

    Function, arguments and results are pickled, so the function must be importable, and its results hold plain tensors, not ``DTensor``.

    Raises:
        AssertionError: a rank raised an exception; the message holds the traceback of each rank that did.
    """
    with tempfile.TemporaryDirectory(prefix="transom-ranks-") as folder:
        ends, processes = [], []
        for rank in range(size):
            mine, its = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_run_rank, args=(its, rank, size, Path(folder) / "store", function, args), daemon=True)
            process.start()
            its.close()
            ends.append(mine)
            processes.append(process)
        results = [_receive(end) for end in ends]
        for end, process in zip(ends, processes, strict=True):
            end.close()
            process.join()
    failed = {rank: text for rank, (text, _) in enumerate(results) if text}
    assert not failed, "\n".join(f"rank {rank}: {text}" for rank, text in failed.items())
    return [result for _, result in results]


def _receive(end: Connection) -> tuple[str, Any]:
    try:
        return end.recv()
    except EOFError:
        return "exited", None


def _run_rank(end: Connection, rank: int, size: int, store: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    try:
        distributed.init_process_group("gloo", init_method=store.as_uri(), rank=rank, world_size=size, timeout=TIMEOUT)
        result = function(rank, *args)
        distributed.barrier()
        distributed.destroy_process_group()
        end.send(("", result))
    except BaseException:  # noqa: BLE001 - it is raised again in the process of the test
        end.send((traceback.format_exc(), None))
        return  # its connections close, and no other rank waits for it
    end.poll(None)  # tensors are shared with the process of the test until it has read them
