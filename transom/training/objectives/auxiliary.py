"""Table of auxiliary objectives: loss terms and updates that components of a model need besides the task's loss."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from transom.data.batch import Batch
from transom.layers.mixture_of_depths import DepthRouter
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.norm import BatchNorm
from transom.models.base import Network
from transom.parallel.processes.collectives import SINGLE_PROCESS, World
from transom.training.objectives.batch_norm import BatchNormStatistics
from transom.training.objectives.objective import AuxiliaryObjective, RecordActivations, forward_pass
from transom.training.objectives.router_losses import DepthRouterLoss, ExpertLoadBalancing

AUXILIARY_OBJECTIVES: dict[type[nn.Module], Callable[[Network, Mapping[str, Any], World], AuxiliaryObjective]] = {
    MixtureOfExperts: ExpertLoadBalancing,
    DepthRouter: DepthRouterLoss,
    BatchNorm: BatchNormStatistics,
}
"""Auxiliary objective for each module class. An objective is built with all modules of that class in a model, by module path."""


def auxiliary_objectives(
    model: Network, world: World, record: RecordActivations | None = None, stages: World = SINGLE_PROCESS
) -> list[AuxiliaryObjective]:
    """Return the auxiliary objectives that the modules of ``model`` need; most models need none.

    Args:
        model: the model, or one pipeline stage of it.
        world: the data-parallel processes.
        record: runs the model and records activations; by default in this process.
        stages: the ranks of a pipeline's stages.
    """

    def run(micro_batches: Sequence[Batch], sites: Sequence[str]) -> Iterator[Mapping[str, Sequence[Tensor]]]:
        return (forward_pass(model, batch, sites).activations for batch in micro_batches)

    found = {kind: {name: module for name, module in model.named_modules() if isinstance(module, kind)} for kind in AUXILIARY_OBJECTIVES}
    objectives = [AUXILIARY_OBJECTIVES[kind](model, modules, world) for kind, modules in found.items() if modules]
    for each in objectives:
        each.record, each.stages = record or run, stages
    return objectives
