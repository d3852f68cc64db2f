"""Table of auxiliary objectives: loss terms and updates that components of a model need besides the task's loss."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from transom.layers.mixture_of_depths import DepthRouter
from transom.layers.mixture_of_experts import MixtureOfExperts
from transom.layers.norm import BatchNorm
from transom.models.base import Network
from transom.parallel.collectives import World
from transom.training.objectives.batch_norm import BatchNormStatistics
from transom.training.objectives.objective import AuxiliaryObjective
from transom.training.objectives.router_losses import DepthRouterLoss, ExpertLoadBalancing

AUXILIARY_OBJECTIVES: dict[type[nn.Module], Callable[[Network, Mapping[str, Any], World], AuxiliaryObjective]] = {
    MixtureOfExperts: ExpertLoadBalancing,
    DepthRouter: DepthRouterLoss,
    BatchNorm: BatchNormStatistics,
}
"""Auxiliary objective for each module class. An objective is built with all modules of that class in a model, by module path."""


def auxiliary_objectives(model: Network, world: World) -> list[AuxiliaryObjective]:
    """Return the auxiliary objectives that the modules of ``model`` need; most models need none."""
    found = {kind: {name: module for name, module in model.named_modules() if isinstance(module, kind)} for kind in AUXILIARY_OBJECTIVES}
    return [AUXILIARY_OBJECTIVES[kind](model, modules, world) for kind, modules in found.items() if modules]
