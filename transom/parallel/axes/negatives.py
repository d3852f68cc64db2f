"""Targets of a contrastive loss: each rank of a batch has the targets of all ranks as negatives, as one process has."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, distributed
from torch.nn import functional as F

from transom.parallel.axes.sequence import gather_sequence
from transom.parallel.processes.collectives import World


def add_targets(own: Float[Tensor, "own d_model"], world: World, counted: bool = True) -> Float[Tensor, "all d_model"]:
    """Return the targets of this rank, followed by those of the other ranks; the backward pass sums their gradients over the ranks.

    Args:
        own: targets of this rank.
        world: the ranks, all of which call this function.
        counted: whether the others get the targets of this rank; False in a pass that only serves them.
    """
    sent = own if counted else own[:0]
    counts = [int(n) for n in world.all_gather(torch.tensor(len(sent)))]
    if not (most := max(counts)):
        return own
    group = cast(distributed.ProcessGroup, world.group or distributed.group.WORLD)
    rows = gather_sequence(F.pad(sent, (0, 0, 0, most - len(sent))), most * world.size, 0, group)
    others = [most * rank + i for rank, n in enumerate(counts) if rank != world.rank for i in range(n)]
    return torch.cat([own, rows[others]])
