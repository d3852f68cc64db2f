"""Build the part of a model that a rank of a layout holds, on the meta device and without the other ranks."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import distributed

from transom.config.architecture import ModelConfig
from transom.config.parallel import ParallelConfig
from transom.models.base import Network
from transom.models.build import build_uninitialized
from transom.parallel.axes.sharding import local
from transom.parallel.layouts import apply_layout
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import World


def count_built_parameters(config: ModelConfig, layout: ParallelConfig, rank: int) -> int:
    """Build what a rank holds of the whole model, as a run does, and count its parameters; no memory is allocated for them.

    Args:
        config: model configuration with known vocabulary sizes.
        layout: the layout, which fits the model.
        rank: the rank.
    """
    with torch.device("meta"):
        model: Network = build_uninitialized(config)
    with _fake_process_group(rank, layout.n_processes) as world:
        apply_layout(model, Ranks(world, layout, torch.device("cpu")))
        return sum(local(p.detach()).numel() for p in model.parameters())


@contextmanager
def _fake_process_group(rank: int, size: int) -> Iterator[World]:
    """Join a process group whose collectives return at once, without communication (PyTorch's backend "fake")."""
    hook = sys.excepthook
    distributed.init_process_group(distributed.Backend.FAKE, rank=rank, world_size=size)
    try:
        yield World(rank, size)
    finally:
        distributed.destroy_process_group()
        sys.excepthook = hook
