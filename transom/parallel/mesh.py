"""The ranks of a run, arranged by its layout."""

from collections.abc import Collection, Iterable
from functools import cached_property
from importlib import import_module

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from transom.config.parallel import ParallelConfig
from transom.parallel.processes.collectives import SINGLE_PROCESS, TIMEOUT, World

BATCH_AXES = ("data", "shard", "expert")
"""Axes along which ranks compute different parts of each batch."""


def build_mesh(layout: ParallelConfig, device: torch.device) -> DeviceMesh:
    """Build the mesh of the running process group, with the axes of ``layout``; axes of size 1 are included.

    All ranks of the process group must call this function at the same point. Meshes of one shape are equal for PyTorch's caches of how
    operations split tensors, whatever their groups, so that these caches would return a mesh of an earlier run in the same process.
    """
    clear_caches = getattr(import_module("torch.distributed.tensor.debug"), "_clear_sharding_prop_cache", lambda: None)  # private
    clear_caches()
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
        self._active = frozenset(axis for axis in layout.AXES if getattr(layout, axis) > 1)
        self._along = {frozenset[str](): SINGLE_PROCESS, self._active: self.world}
        self._create([BATCH_AXES, (*BATCH_AXES, "context", "tensor"), ("pipeline",), ("pipeline", "expert")])
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
        """Return the ranks that differ from this one in ``axes`` only; ``create_groups`` must have created their group."""
        return self._along[frozenset(axes) & self._active]

    def create_groups(self, sets: Iterable[Collection[str]]) -> None:
        """Create the process groups along sets of axes that this rank or another one needs; all ranks must do so at the same point.

        PyTorch requires that all ranks create all groups, in the same order. Each group takes threads, or on a GPU memory, on each rank, so
        there are none for sets that no rank needs.
        """
        if len(self._active) < 2:
            return
        codes = {sum(1 << i for i, axis in enumerate(self.layout.AXES) if axis in axes) for axes in sets}  # a bit per axis
        wanted = sorted({*self.world.all_gather_lists(sorted(codes))})
        self._create([axis for i, axis in enumerate(self.layout.AXES) if code >> i & 1] for code in wanted)

    def _create(self, sets: Iterable[Collection[str]]) -> None:
        """Create the process groups along sets of axes, which are the same on all ranks."""
        for axes in sets:
            if (wanted := frozenset(axes) & self._active) in self._along:
                continue
            for ranks in sorted({tuple(self.layout.ranks_along(rank, wanted)) for rank in range(self.world.size)}):
                group = distributed.new_group(list(ranks), timeout=TIMEOUT)
                if self.world.rank in ranks:
                    self._along[wanted] = World(ranks.index(self.world.rank), len(ranks), group)


SINGLE_RANK = Ranks(SINGLE_PROCESS, ParallelConfig(), torch.device("cpu"))
"""The ranks of a run with one process."""
