"""The environment variables by which torchrun, or a batch system that sets the same ones, starts the ranks of a run."""

import os
from typing import NamedTuple


class TorchrunRank(NamedTuple):
    """Place of this process among those that torchrun has started.

    Attributes:
        rank: rank of this process.
        size: number of processes on all machines.
        local_rank: number of this process on its machine, which is also that of its GPU.
    """

    rank: int
    size: int
    local_rank: int


def torchrun_rank() -> TorchrunRank | None:
    """Return the place of this process if torchrun has started it, otherwise None."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(os.environ.get(name) for name in names):
        return None
    return TorchrunRank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_RANK", "0")))


def processes_on_machine(n_processes: int) -> int:
    """Return how many of the run's ``n_processes`` processes share this machine: as torchrun says, all of them without it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", n_processes)) if torchrun_rank() is not None else n_processes


def torchrun_job() -> str:
    """Return what identifies the torchrun that has started this process, on this machine and over its restarts; empty without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    return f"torchrun {name} in process {os.getppid()} on {os.uname().nodename}" if name else ""
