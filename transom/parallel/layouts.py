"""Apply a layout to a model, and move tensors between the whole model and the parts that ranks hold."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from transom.models.base import Network
from transom.parallel.axes.context import apply_context_parallel
from transom.parallel.axes.experts import apply_expert_parallel, expert_parameters
from transom.parallel.axes.pipeline import Pipeline
from transom.parallel.axes.sharding import apply_fsdp, dtensor_axes, whole
from transom.parallel.axes.tensor import apply_tensor_parallel
from transom.parallel.mesh import Ranks
from transom.planning.pipeline_stages import stage_blocks


def apply_layout(model: Network, ranks: Ranks, dtype: torch.dtype = torch.float32) -> Pipeline | None:
    """Turn a whole model, equal on all ranks, into this rank's part of it. Build the optimizer afterwards, on the new parameters.

    Args:
        model: the model.
        ranks: the ranks of the run.
        dtype: dtype of the matrix products.

    Returns:
        This rank's stage of the pipeline, which computes passes in place of the model; None without pipeline parallelism.
    """
    layout = ranks.layout
    if layout.context > 1:
        apply_context_parallel(model, ranks.mesh)  # first: it takes chunks of the tokens, of which tensor parallelism takes chunks
    if layout.tensor > 1:
        apply_tensor_parallel(model, ranks.mesh)
    if layout.expert > 1:
        apply_expert_parallel(model, ranks.mesh)
    pipeline = None
    if layout.pipeline > 1:
        enabled = dtype != torch.float32
        autocast = partial(torch.autocast, ranks.device.type, dtype, enabled)
        stages = stage_blocks(model.config, layout.pipeline)
        stream = dtype if enabled else next(model.parameters()).dtype
        pipeline = Pipeline(model, ranks.mesh.get_group("pipeline"), stages, autocast, stream)
    if layout.shard > 1:
        apply_fsdp(model if pipeline is None else pipeline.module, ranks.mesh)
    return pipeline


def split_axes(model: Network, ranks: Ranks) -> dict[nn.Parameter, frozenset[str]]:
    """Return, for each parameter of this rank, the axes along which ranks hold different parts of it or different parameters."""
    experts = {id(p) for p in expert_parameters(model).values()} if ranks.layout.expert > 1 else set()
    stage = {"pipeline"} if ranks.layout.pipeline > 1 else set()
    return {p: dtensor_axes(p) | stage | ({"expert"} if id(p) in experts else set()) for p in model.parameters()}


def gather_whole(model: Network, tensors: Mapping[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """Return the whole model's tensors on rank 0, and none on the other ranks, all of which have to take part.

    Args:
        model: this rank's part of the model.
        tensors: tensors of this rank by the name of a parameter or buffer, which further parts may follow, as ``exp_avg``.
        ranks: the ranks of the run.
    """
    position, own = ranks.layout.coordinates(ranks.world.rank), {}
    is_first = all(index == 0 for axis, index in position.items() if axis not in ("pipeline", "expert"))
    experts = tuple(expert_parameters(model)) if position["expert"] else ()
    for name, x in tensors.items():
        tensor = whole(x)  # which all ranks that have a part of it compute
        if is_first and (position["expert"] == 0 or name.startswith(experts)):
            own[name] = tensor
    return ranks.along(("pipeline", "expert")).gather_tensors(own, ranks.device) if is_first else {}
