"""Fully sharded data parallelism (FSDP2), and tensors of which each rank holds a shard."""

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Replicate

from transom.layers.block import Block
from transom.models.base import Network


def apply_fsdp(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the parameters over the ``shard`` axis, by blocks, as in ZeRO stage 3 (Rajbhandari et al. 2020, section 5).

    A block's weights are gathered before its forward and its backward pass, and freed afterwards; embedding, output projection and whatever
    else is not in a block stay gathered during a step. Gradients are summed, not averaged, since the loss is divided by the tokens of the
    whole batch. The parameters become ``DTensor``, so the optimizer is built afterwards.
    """
    for module in model.modules():
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    if isinstance(model, Network):
        register_fsdp_forward_method(model, "logit_factors")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no product with a factor


def local(x: Tensor) -> Tensor:
    """Return the shard of a tensor that this rank holds, without a copy and without gradients; the tensor itself if it is whole."""
    x = x.detach()
    return x.to_local() if isinstance(x, DTensor) else x


def whole(x: Tensor) -> Tensor:
    """Gather a tensor from its shards; a collective operation of all ranks that hold one."""
    x = x.detach()
    return x.full_tensor() if isinstance(x, DTensor) else x


def from_local(x: Tensor, like: Tensor) -> Tensor:
    """Return the tensor whose shards are ``x`` of each rank, in the layout of ``like``."""
    if not isinstance(like, DTensor):
        return x
    return DTensor.from_local(x, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride())


def dtensor_axes(x: Tensor) -> frozenset[str]:
    """Return the axes of the mesh along which ranks hold different shards of a tensor."""
    if not isinstance(x, DTensor):
        return frozenset()
    names = x.device_mesh.mesh_dim_names or ()
    return frozenset(name for name, placement in zip(names, x.placements, strict=True) if not isinstance(placement, Replicate))
