"""The ranks of a run, arranged by its layout."""

from collections.abc import Collection
from functools import cached_property

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from transom.config.parallel import ParallelConfig
from transom.parallel.collectives import SINGLE_PROCESS, TIMEOUT, World

BATCH_AXES = ("data", "shard", "expert")
"""Axes along which ranks compute different parts of each batch."""


def build_mesh(layout: ParallelConfig, device: torch.device) -> DeviceMesh:
    """Build the mesh of the running process group, with the axes of ``layout``; axes of size 1 are included.

    All ranks of the process group must call this function at the same point.
    """
    return init_device_mesh(device.type, layout.sizes, mesh_dim_names=layout.AXES)


class Ranks:
    """The ranks of a run, arranged by its layout in a mesh with the axes of ``ParallelConfig``.

    Attributes:
        world: all ranks.
        layout: the size of each axis.
        device: device of this rank.
    """

    def __init__(self, world: World, layout: ParallelConfig, device: torch.device) -> None:
        """Arrange the ranks of ``world``, whose number is that of ``layout``."""
        assert world.size == layout.n_processes
        self.world, self.layout, self.device = world, layout, device
        self._groups: dict[tuple[int, ...], World] = {}

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The mesh for PyTorch's own layouts, axes of size 1 included. All ranks must access it first at the same point of the run."""
        return build_mesh(self.layout, self.device)

    @property
    def need_equal_passes(self) -> bool:
        """Whether a pass of one rank waits in collectives for passes of ranks with other parts of the batch."""
        return self.layout.shard * self.layout.expert > 1

    @property
    def splits_weights(self) -> bool:
        """Whether ranks hold different weights."""
        return self.layout.n_processes > self.layout.data * self.layout.context

    @property
    def batch(self) -> World:
        """The ranks that compute different parts of each batch, of which this is one."""
        return self.along(BATCH_AXES)

    def along(self, axes: Collection[str]) -> World:
        """Return the ranks that differ from this one in ``axes`` only; all of them must ask for it at the same point of the run."""
        ranks = tuple(self.layout.ranks_along(self.world.rank, axes))
        if len(ranks) == 1:
            return SINGLE_PROCESS
        if len(ranks) == self.world.size:
            return self.world
        if ranks not in self._groups:
            group = distributed.new_group(list(ranks), timeout=TIMEOUT, use_local_synchronization=True)
            self._groups[ranks] = World(ranks.index(self.world.rank), len(ranks), group)
        return self._groups[ranks]


SINGLE_RANK = Ranks(SINGLE_PROCESS, ParallelConfig(), torch.device("cpu"))
"""The ranks of a run with one process."""
