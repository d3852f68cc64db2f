"""Apply a layout to a model, and move tensors between the whole model and the parts that ranks hold."""

from collections.abc import Mapping

from torch import Tensor, nn

from transom.models.base import Network
from transom.parallel.experts import apply_expert_parallel, expert_parameters, gather_experts, select_experts
from transom.parallel.mesh import Ranks
from transom.parallel.sharding import apply_fsdp, dtensor_axes, whole


def apply_layout(model: Network, ranks: Ranks) -> None:
    """Turn a whole model, equal on all ranks, into this rank's part of it. Build the optimizer afterwards, on the new parameters."""
    if ranks.layout.expert > 1:
        apply_expert_parallel(model, ranks.mesh)
    if ranks.layout.shard > 1:
        apply_fsdp(model, ranks.mesh)


def split_axes(model: Network, ranks: Ranks) -> dict[nn.Parameter, frozenset[str]]:
    """Return, for each parameter of this rank, the axes along which ranks hold different parts of it or different parameters."""
    experts = {id(p) for p in expert_parameters(model).values()} if ranks.layout.expert > 1 else set()
    return {p: dtensor_axes(p) | ({"expert"} if id(p) in experts else set()) for p in model.parameters()}


def gather_whole(model: Network, tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Return the whole model's tensors on rank 0, and none on the other ranks, all of which have to take part.

    Args:
        model: this rank's part of the model.
        tensors: tensors of this rank by the name of a parameter or buffer, which further parts may follow, as ``exp_avg``.
        ranks: the ranks of the run.
    """
    gathered = {}
    for name, x in tensors.items():
        tensor = whole(x)
        if ranks.world.rank == 0 or ranks.layout.expert > 1:
            gathered[name] = tensor
    if ranks.layout.expert > 1:
        gathered = gather_experts(model, gathered, ranks.mesh)
    return gathered if ranks.world.rank == 0 else {}


def select_own(model: Network, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return those of the whole model's tensors of which this rank holds a part; without communication."""
    return select_experts(model, tensors)
