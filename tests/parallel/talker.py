"""A worker for the tests: it does what its parent does, or what its last argument says."""

import os
import signal
import sys
from pathlib import Path

import torch

from transom.parallel.processes.collectives import World
from transom.parallel.processes.heartbeat import READY
from transom.parallel.processes.launcher import join_as_worker

SAID = ((1, 2.5), (10, 20.25), (100, 200.125))
"""What each process adds to the totals."""

LISTS = ([], [4, 5, 6], [7])
"""What each process has to say, of its own length."""

END_BEFORE_JOINING = {"die early": signal.SIGKILL, "stop early": signal.SIGSTOP}
"""How the last process ends between having said that it is ready and meeting the others."""


def talk(world: World) -> dict[str, object]:
    """Do each thing once that processes do together."""
    own = [torch.full((2, 3), 10.0**world.rank), torch.tensor([world.rank + 0.5])]
    world.all_reduce(own)
    return {
        "broadcast_scalars": world.broadcast_scalars(7 if world.rank == 0 else 99),
        "totals": world.all_reduce_scalars(*SAID[world.rank]),
        "summed": [x.tolist() for x in own],
        "gathered": [x.tolist() for x in world.all_gather(torch.tensor([world.rank]))],
        "joint": world.all_gather_lists(LISTS[world.rank]),
    }


if __name__ == "__main__":
    rank, size, rendezvous, does = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    if does == "fail":
        raise SystemExit("nothing works here")
    if does in END_BEFORE_JOINING and rank == size - 1:
        sys.stdout.buffer.write(READY)
        sys.stdout.flush()
        os.kill(os.getpid(), END_BEFORE_JOINING[does])
    with join_as_worker(rank, size, rendezvous) as world:
        first = talk(world)
        if does == "die" and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if does == "stop" and rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        while does == "compute" and not Path(sys.argv[5]).exists():  # without a word to the others, for as long as the test wants
            sum(i * i for i in range(10**5))
        while world.broadcast_scalars(0)[0]:
            assert talk(world) == first
