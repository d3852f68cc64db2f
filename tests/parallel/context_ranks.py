"""Functions of the tests of context parallelism that run on each rank."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transom.config.architecture import ModelConfig
from transom.config.parallel import ParallelConfig
from transom.layers.observe import ActivationRecorder
from transom.layers.stack import Stack
from transom.models.base import Network
from transom.models.build import build_model
from transom.parallel import ring_attention
from transom.parallel.context import apply_context_parallel
from transom.parallel.mesh import batch_rank, build_mesh
from transom.parallel.sequence import split_loss_mask

CPU = torch.device("cpu")
TILE_SIZE = 2
"""Tile of the ring in the tests: some tiles are full, some partial, some empty."""


class Case(NamedTuple):
    """A model and a batch."""

    config: ModelConfig
    batch: Any


def built(config: ModelConfig) -> Network:
    """Build the same float64 model on each rank, with random vectors, so that none is 0 or 1 by default."""
    torch.manual_seed(1)
    model = build_model(config)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    return model.double().eval()


def part_of_loss(model: Network, batch: Any, rank: int = 0, n: int = 1) -> Tensor:
    """Compute a rank's part of the loss, a sum over its targets, divided by the number of all targets."""
    mask = split_loss_mask(batch.loss_mask, rank, n)
    return F.cross_entropy(model(batch)[mask], batch.labels[mask], reduction="sum") / batch.loss_mask.sum()


def loss_and_gradients(model: Network, loss: Tensor) -> dict[str, Tensor]:
    """Return the loss, named "loss", and the gradient of every parameter."""
    loss.backward()
    grads = {name: torch.zeros_like(x) if x.grad is None else x.grad for name, x in model.named_parameters()}
    return {"loss": loss.detach(), **grads}


def split_results(rank: int, cases: Sequence[Case], ring: bool) -> list[dict[str, Tensor]]:
    """Return loss and gradients of each case, summed over the ranks."""
    ring_attention.TILE_SIZE = TILE_SIZE
    n = distributed.get_world_size()
    mesh, results = build_mesh(ParallelConfig(context=n), CPU), []
    for config, batch in cases:
        model = built(config)
        apply_context_parallel(model, mesh, ring)
        results.append(summed(loss_and_gradients(model, part_of_loss(model, batch, rank, n))))
    return results


def summed(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the sum over the ranks."""
    flat = torch.cat([x.flatten() for x in found.values()])
    distributed.all_reduce(flat)
    parts = flat.split([x.numel() for x in found.values()])
    return {name: part.view_as(x) for (name, x), part in zip(found.items(), parts, strict=True)}


def sharded_results(rank: int, config: ModelConfig, batches: Sequence[Any]) -> dict[str, Tensor]:
    """Return loss and whole gradients with weights sharded over 2 x 2 ranks, where two ranks share each batch."""
    mesh = build_mesh(ParallelConfig(shard=2, context=2), CPU)
    model = built(config)
    apply_context_parallel(model, mesh)
    stack = next(module for module in model.modules() if isinstance(module, Stack))
    for module in (*stack.blocks, model):
        sharded = fully_shard(module, mesh=mesh["shard", "context"]._flatten("shard_context"))
        sharded.set_gradient_divide_factor(1.0)
    batch, n_targets = batches[batch_rank(mesh)], sum(int(each.loss_mask.sum()) for each in batches)
    mask = split_loss_mask(batch.loss_mask, mesh.get_local_rank("context"), 2)
    loss = F.cross_entropy(model(batch)[mask], batch.labels[mask], reduction="sum") / n_targets
    loss.backward()
    distributed.all_reduce(total := loss.detach())
    return {"loss": total, **{name: x.grad.full_tensor() for name, x in model.named_parameters()}}


class LargestTensor(TorchDispatchMode):
    """Records the largest number of elements of a tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.n_elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and measure its results."""
        result = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() // x.element_size() for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.n_elements = max([self.n_elements, *sizes])
        return result


def largest_tensors(rank: int, config: ModelConfig, batch: Any, ring: bool) -> int:
    """Return the number of elements of the largest tensor of forward and backward pass on this rank."""
    ring_attention.TILE_SIZE = 16
    n = distributed.get_world_size()
    model = built(config)
    apply_context_parallel(model, build_mesh(ParallelConfig(context=n), CPU), ring)
    with LargestTensor() as largest:
        part_of_loss(model, batch, rank, n).backward()
    return largest.n_elements


def router_counts(rank: int, config: ModelConfig, batch: Any) -> tuple[float, dict[str, Tensor]]:
    """Return the number of routed tokens, and the gradients of a loss of the router's logits, summed over the ranks."""
    n = distributed.get_world_size()
    model, site = built(config), "decoder.blocks.1.ff.router"
    apply_context_parallel(model, build_mesh(ParallelConfig(context=n), CPU))
    recorder = ActivationRecorder([site])
    model(batch, recorder)
    (mask,) = model.token_masks(site, batch)
    routed = recorder.activations[site][mask]
    found = loss_and_gradients(model, routed.logsumexp(-1).square().sum())
    return int(summed({"n": torch.tensor(len(routed))})["n"]), summed(found)
