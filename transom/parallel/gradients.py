"""Gradients of a step over all ranks: their sum, and their norm."""

import math

import torch
from torch import Tensor, nn

from transom.models.base import Network
from transom.parallel.layouts import split_axes
from transom.parallel.mesh import Ranks
from transom.parallel.sharding import from_local, local

SUMMED_AXES = ("data", "shard", "expert", "context", "tensor")
"""Axes along which ranks compute gradients of different samples or tokens."""


class Gradients:
    """The gradients of a model's trainable parameters, of which each rank has computed a part."""

    def __init__(self, model: Network, ranks: Ranks) -> None:
        """Note the parameters of ``model``, whose layout is that of ``ranks``, by the axes over which their gradients are summed.

        Along the axes by which a parameter is split, its gradient is complete already: FSDP has summed it, and the ranks of tensor and
        expert parallelism compute the gradients of their own weights.
        """
        self._ranks = ranks
        self._split = {p: axes for p, axes in split_axes(model, ranks).items() if p.requires_grad}
        self._by_axes: dict[tuple[str, ...], list[nn.Parameter]] = {}
        for p, split in self._split.items():
            self._by_axes.setdefault(tuple(axis for axis in SUMMED_AXES if axis not in split), []).append(p)

    def all_reduce(self) -> None:
        """Sum each gradient over the ranks that hold the same shard of the parameter; a rank without a gradient contributes zeros."""
        for axes, parameters in self._by_axes.items():
            world = self._ranks.along(axes)
            if world.size > 1:
                gradients = [local(torch.zeros_like(p) if p.grad is None else p.grad) for p in parameters]
                for p, total in zip(parameters, world.all_reduce(gradients), strict=True):
                    p.grad = from_local(total, p)

    def clip_norm(self, max_norm: float) -> float:
        """Clip the norm of all gradients, each counted once however many ranks hold it; return the norm before clipping.

        As ``torch.nn.utils.clip_grad_norm_``, which cannot combine parameters of several meshes.
        """
        if not any(self._split.values()):
            return nn.utils.clip_grad_norm_(self._split, max_norm).item()
        gradients = [(local(p.grad), split) for p, split in self._split.items() if p.grad is not None]
        squares = sum(_square_sum(gradient) / self._n_holders(split) for gradient, split in gradients)
        norm = math.sqrt(self._ranks.world.all_reduce_scalars(squares)[0])
        if (factor := max_norm / (norm + 1e-6)) < 1.0:
            for gradient, _ in gradients:
                gradient.mul_(factor)
        return norm

    def _n_holders(self, split: frozenset[str]) -> int:
        """Return the number of ranks that hold the same shard of a parameter that is split by these axes."""
        layout = self._ranks.layout
        return math.prod(size for axis, size in zip(layout.AXES, layout.sizes, strict=True) if axis not in split)


def _square_sum(x: Tensor) -> float:
    return x.double().square().sum().item()
