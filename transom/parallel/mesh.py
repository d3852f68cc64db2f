"""The mesh of a run's processes, one axis per kind of parallelism."""

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from transom.config.parallel import ParallelConfig


def build_mesh(layout: ParallelConfig, device: torch.device) -> DeviceMesh:
    """Build the mesh of the running process group, whose axes are ``ParallelConfig.AXES``; axes of size 1 are included.

    All ranks of the process group must call this function.
    """
    return init_device_mesh(device.type, layout.sizes, mesh_dim_names=layout.AXES)


def batch_rank(mesh: DeviceMesh) -> int:
    """Return which part of each batch this process computes; ranks that differ in other axes than data, shard and expert share one."""
    index = 0
    for axis in ("data", "shard", "expert"):
        index = index * mesh[axis].size() + mesh.get_local_rank(axis)
    return index
