"""The objectives that the components of a model bring with them: the only table of them."""

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
"""By the class of a module, the objective of all modules of that class, which it takes by their addresses."""


def auxiliary_objectives(model: Network, world: World) -> list[AuxiliaryObjective]:
    """Return the objectives of the components of ``model``, which ``world``'s processes share; none for most models."""
    found = {kind: {name: module for name, module in model.named_modules() if isinstance(module, kind)} for kind in AUXILIARY_OBJECTIVES}
    return [AUXILIARY_OBJECTIVES[kind](model, modules, world) for kind, modules in found.items() if modules]
