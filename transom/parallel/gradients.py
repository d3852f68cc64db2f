"""Gradients of a step over all ranks: their sum, and their norm."""

import math

import torch
from torch import nn

from transom.models.base import Network
from transom.parallel.axes.pipeline import Pipeline
from transom.parallel.axes.sharding import local
from transom.parallel.layouts import split_axes
from transom.parallel.mesh import Ranks

SUMMED_AXES = ("data", "shard", "expert", "context", "tensor")
"""Axes along which ranks compute gradients of different samples or tokens."""


def partial_axes(model: Network, ranks: Ranks) -> dict[str, tuple[str, ...]]:
    """Return, by the name of each trained parameter, the axes over which the gradients of its ranks have yet to be summed.

    Along the axes by which a parameter is split, its gradient is complete already: FSDP has summed it, and the ranks of tensor and expert
    parallelism compute the gradients of their own weights.
    """
    split = split_axes(model, ranks)
    axes = [axis for axis in SUMMED_AXES if getattr(ranks.layout, axis) > 1]
    return {name: tuple(axis for axis in axes if axis not in split[p]) for name, p in model.named_parameters() if p.requires_grad}


class Gradients:
    """The gradients of a model's trainable parameters, of which each rank has computed a part."""

    def __init__(self, model: Network, ranks: Ranks, pipeline: Pipeline | None = None) -> None:
        """Note the parameters of ``model``, whose layout is that of ``ranks``, by the axes over which their gradients are summed.

        A parameter that several stages of ``pipeline`` have, such as a tied embedding, counts for the norm in the first of them only.
        """
        self._ranks, self._pipeline = ranks, pipeline
        parameters, split = dict(model.named_parameters()), split_axes(model, ranks)
        self._split = {p: split[p] for p in parameters.values() if p.requires_grad}
        self._counted = {*self._split} if pipeline is None else {*pipeline.counted}
        self._by_axes: dict[tuple[str, ...], list[nn.Parameter]] = {}
        for name, axes in partial_axes(model, ranks).items():
            self._by_axes.setdefault(axes, []).append(parameters[name])
        ranks.create_groups(self._by_axes)

    @property
    def are_whole(self) -> bool:
        """Return whether each rank holds all gradients of all parameters."""
        return not any(self._split.values())

    def all_reduce(self) -> None:
        """Sum each gradient over the ranks that hold the same shard of the parameter; a rank without a gradient contributes zeros."""
        for axes, parameters in self._by_axes.items():
            world = self._ranks.along(axes)
            if world.size > 1:
                for p in parameters:
                    if p.grad is None:
                        p.grad = torch.zeros_like(p)
                world.all_reduce([local(p.grad) for p in parameters if p.grad is not None])
        if self._pipeline is not None:
            self._pipeline.sum_shared_gradients()

    def clip_grad_norm_(self, max_norm: float) -> float:
        """Clip the norm of all gradients, each counted once however many ranks hold it; return the norm before clipping.

        Like ``torch.nn.utils.clip_grad_norm_``, which cannot combine parameters of several meshes.
        """
        gradients = [(local(p.grad), split, p in self._counted) for p, split in self._split.items() if p.grad is not None]
        squares = [gradient.double().square().sum() / self._n_holders(split) for gradient, split, counted in gradients if counted]
        norm = math.sqrt(self._ranks.world.all_reduce_scalars(float(sum(squares)))[0])
        if (factor := max_norm / (norm + 1e-6)) < 1.0:
            for gradient, *_ in gradients:
                gradient.mul_(factor)
        return norm

    def _n_holders(self, split: frozenset[str]) -> int:
        """Return the number of ranks that hold the same shard of a parameter that is split by these axes."""
        layout = self._ranks.layout
        return math.prod(size for axis, size in zip(layout.AXES, layout.sizes, strict=True) if axis not in split)
