"""Functions of the tests of context parallelism that run on each rank."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.parallel.equality import StepGradients, backward, build_double, gradients_of
from transom.config.architecture import ModelConfig
from transom.config.parallel import ParallelConfig
from transom.parallel.axes import chunk_mask
from transom.parallel.axes.context import apply_context_parallel
from transom.parallel.axes.tensor import apply_tensor_parallel
from transom.parallel.gradients import Gradients
from transom.parallel.layouts import apply_layout
from transom.parallel.mesh import Ranks, build_mesh
from transom.parallel.processes.collectives import World

CPU = torch.device("cpu")
TILE_SIZE = 2
"""Tile of the ring in the tests: some tiles are full, some partial, some empty."""


class Case(NamedTuple):
    """A model and a batch."""

    config: ModelConfig
    batch: Any


class Split(NamedTuple):
    """How a model is split, and whether keys and values move around a ring or are gathered."""

    layout: ParallelConfig
    ring: bool = True


def split_steps(rank: int, cases: Sequence[Case], split: Split) -> list[StepGradients]:
    """Return loss and gradients of each case on all ranks together."""
    chunk_mask.TILE_SIZE = TILE_SIZE
    world = World(rank, split.layout.n_processes)
    ranks = Ranks(world, split.layout, CPU)
    results = []
    for config, batch in cases:
        model = build_double(config)
        apply_context_parallel(model, ranks.mesh, split.ring)
        apply_tensor_parallel(model, ranks.mesh)
        loss = backward(model, batch, (rank, world.size), world=world)
        Gradients(model, ranks).all_reduce()
        results.append(StepGradients(*world.all_reduce_scalars(loss), gradients_of(model)))
    return results


def sharded_step(rank: int, config: ModelConfig, batches: Sequence[Any]) -> StepGradients:
    """Return loss and gradients with weights sharded over 2 x 2 ranks, where two ranks share each batch."""
    layout, world = ParallelConfig(shard=2, context=2), World(rank, 4)
    ranks, model = Ranks(world, layout, CPU), build_double(config)
    apply_layout(model, ranks)
    part = layout.coordinates(rank)["context"], layout.context
    loss = backward(model, batches[layout.batch_part(rank)], part)
    Gradients(model, ranks).all_reduce()
    return StepGradients(*world.all_reduce_scalars(loss), gradients_of(model))


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements of a tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.n_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and measure the memory of its results."""
        result = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.n_elements = max([self.n_elements, *sizes])
        return result


def largest_tensor(rank: int, config: ModelConfig, batch: Any, ring: bool) -> int:
    """Return the number of elements of the largest tensor of forward and backward pass on this rank."""
    chunk_mask.TILE_SIZE = 16
    n = distributed.get_world_size()
    model = build_double(config)
    apply_context_parallel(model, build_mesh(ParallelConfig(context=n), CPU), ring)
    with LargestTensor() as largest:
        backward(model, batch, (rank, n))
    return largest.n_elements
