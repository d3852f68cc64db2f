"""Gradients of replicated parameters: each rank computes a part of the sum."""

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

LOSS_AXES = ("data", "shard", "expert", "context", "tensor")
"""Axes of the mesh along which the loss of a batch is a sum of the ranks' losses."""


def partial_axes(model: nn.Module, mesh: DeviceMesh) -> dict[str, tuple[str, ...]]:
    """Return, by the name of each parameter that is trained, the axes of the mesh over which its gradient has yet to be summed.

    These are all axes of several ranks along which the loss is split, but not those of the parameter's own mesh: along these the parameter
    is split, or FSDP has summed its gradient.
    """
    axes = [axis for axis in LOSS_AXES if mesh[axis].size() > 1]
    return {
        name: tuple(axis for axis in axes if axis not in _own_axes(parameter))
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def _own_axes(parameter: nn.Parameter) -> tuple[str, ...]:
    return (parameter.device_mesh.mesh_dim_names or ()) if isinstance(parameter, DTensor) else ()


@torch.no_grad()
def reduce_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Sum the partial gradients over their axes, in place, with one collective per axis and dtype.

    A rank without a gradient of a parameter, such as one without rows, contributes zeros.
    """
    parameters, partial = dict(model.named_parameters()), partial_axes(model, mesh)
    for axis in LOSS_AXES:
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for name, axes in partial.items():
            if axis in axes:
                gradient = _local_gradient(parameters[name])
                by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for gradients in by_dtype.values():
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            distributed.all_reduce(flat, group=mesh.get_group(axis))
            for gradient, reduced in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
                gradient.copy_(reduced.view_as(gradient))


def _local_gradient(parameter: nn.Parameter) -> Tensor:
    """Return this rank's part of a gradient, which shares its memory; set the gradient to zeros if there is none."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
