"""Functions of the tests of context parallelism that run on each rank."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.parallel.equality import StepGradients, backward, build_double, gradients_of
from transom.config.architecture import ModelConfig
from transom.config.parallel import ParallelConfig
from transom.layers.stack import Stack
from transom.parallel import chunk_mask
from transom.parallel.collectives import World
from transom.parallel.context import apply_context_parallel
from transom.parallel.gradients import reduce_gradients
from transom.parallel.mesh import batch_rank, build_mesh
from transom.parallel.tensor import apply_tensor_parallel

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
    mesh, world = build_mesh(split.layout, CPU), World(rank, split.layout.n_processes)
    results = []
    for config, batch in cases:
        model = build_double(config)
        apply_context_parallel(model, mesh, split.ring)
        apply_tensor_parallel(model, mesh)
        loss = backward(model, batch, (rank, world.size), world=world)
        reduce_gradients(model, mesh)
        results.append(StepGradients(*world.all_reduce_scalars(loss), gradients_of(model)))
    return results


def sharded_step(rank: int, config: ModelConfig, batches: Sequence[Any]) -> StepGradients:
    """Return loss and gradients with weights sharded over 2 x 2 ranks, where two ranks share each batch."""
    mesh, world = build_mesh(ParallelConfig(shard=2, context=2), CPU), World(rank, 4)
    model = build_double(config)
    apply_context_parallel(model, mesh)
    axis = mesh["shard", "context"]._flatten("shard_context")
    for module in (*(block for each in model.modules() if isinstance(each, Stack) for block in each.blocks), model):
        fully_shard(module, mesh=axis).set_gradient_divide_factor(1.0)
    register_fsdp_forward_method(model, "logit_factors")
    loss = backward(model, batches[batch_rank(mesh)], (mesh.get_local_rank("context"), 2))
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
