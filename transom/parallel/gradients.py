"""Gradients of a step over all ranks: their sum, and their norm."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from transom.parallel.mesh import Ranks
from transom.parallel.sharding import from_local, local, split_axes

SUMMED_AXES = ("data", "shard", "expert", "context", "tensor")
"""Axes along which ranks compute gradients of different samples or tokens."""


def all_reduce_gradients(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Sum each gradient over the ranks that hold the same shard of the parameter; a rank without a gradient contributes zeros.

    Along the axes by which a parameter is split, its gradient is complete already: FSDP has summed it, and the ranks of tensor parallelism
    compute the gradients of their own shards.
    """
    by_axes: dict[tuple[str, ...], list[nn.Parameter]] = {}
    for p in parameters:
        if p.requires_grad:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            by_axes.setdefault(tuple(axis for axis in SUMMED_AXES if axis not in split_axes(p)), []).append(p)
    for axes, group in by_axes.items():
        world = ranks.along(axes)
        if world.size > 1:
            for p, total in zip(group, world.all_reduce([_gradient(p) for p in group]), strict=True):
                p.grad = from_local(total, p)


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float, ranks: Ranks) -> float:
    """Clip the norm of the gradients of all parameters, each counted once however many ranks hold it; return the norm before clipping.

    As ``torch.nn.utils.clip_grad_norm_``, which cannot combine parameters of several meshes.
    """
    parameters = [p for p in parameters if p.grad is not None]
    if not any(split_axes(p) for p in parameters):
        return nn.utils.clip_grad_norm_(parameters, max_norm).item()
    squares = 0.0
    for p in parameters:
        holders = math.prod(size for axis, size in zip(ranks.layout.AXES, ranks.layout.sizes, strict=True) if axis not in split_axes(p))
        squares += _gradient(p).double().square().sum().item() / holders
    norm = math.sqrt(ranks.world.all_reduce_scalars(squares)[0])
    factor = max_norm / (norm + 1e-6)
    if factor < 1.0:
        for p in parameters:
            _gradient(p).mul_(factor)
    return norm


def _gradient(p: nn.Parameter) -> Tensor:
    assert p.grad is not None
    return local(p.grad)
