"""The ranks of a run, arranged by its layout."""

from collections.abc import Collection
from functools import cached_property
from itertools import combinations

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from transom.config.parallel import ParallelConfig
from transom.parallel.processes.collectives import SINGLE_PROCESS, TIMEOUT, World

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
        batch: the ranks that compute different parts of each batch, of which this is one.
        tokens: the ranks that compute different tokens of a batch, of which this is one.
        stages: the ranks of the other stages of the pipeline that compute the same tokens, and this one.
        loss_part: index of the part of a micro-batch's labels whose loss this rank computes, and the number of parts.
        need_equal_passes: whether a pass of one rank waits in collectives for passes of ranks with other parts of the batch.
        splits_weights: whether ranks hold different weights.
        splits_model: whether a forward pass needs several ranks.
    """

    def __init__(self, world: World, layout: ParallelConfig, device: torch.device) -> None:
        """Arrange the ranks of ``world``, whose number is that of ``layout``; all of them must do so at the same time."""
        assert world.size == layout.n_processes
        self.world, self.layout, self.device = world, layout, device
        self._create_groups()
        self.batch, self.tokens = self.along(BATCH_AXES), self.along((*BATCH_AXES, "context", "tensor"))
        self.stages = self.along(("pipeline",))
        position = layout.coordinates(world.rank)
        self.loss_part = position["context"] * layout.tensor + position["tensor"], layout.context * layout.tensor
        self.need_equal_passes = layout.shard * layout.expert * layout.pipeline > 1 and layout.n_batch_parts > 1
        self.splits_weights = layout.n_processes > layout.data * layout.context
        self.splits_model = layout.n_processes > layout.data

    @cached_property
    def mesh(self) -> DeviceMesh:
        """The mesh for PyTorch's own layouts, axes of size 1 included. All ranks must access it first at the same point of the run."""
        return build_mesh(self.layout, self.device)

    def along(self, axes: Collection[str]) -> World:
        """Return the ranks that differ from this one in ``axes`` only."""
        return self._along[frozenset(axes) & self._active]

    def _create_groups(self) -> None:
        """Create a process group for each set of axes, in the same order on all ranks, as PyTorch requires."""
        self._active = frozenset(axis for axis in self.layout.AXES if getattr(self.layout, axis) > 1)
        self._along = {frozenset[str](): SINGLE_PROCESS, self._active: self.world}
        for n in range(1, len(self._active)):
            for axes in combinations(sorted(self._active), n):
                for ranks in sorted({tuple(self.layout.ranks_along(rank, axes)) for rank in range(self.world.size)}):
                    group = distributed.new_group(list(ranks), timeout=TIMEOUT)
                    if self.world.rank in ranks:
                        self._along[frozenset(axes)] = World(ranks.index(self.world.rank), len(ranks), group)


SINGLE_RANK = Ranks(SINGLE_PROCESS, ParallelConfig(), torch.device("cpu"))
"""The ranks of a run with one process."""
