"""The objectives that the components of a model bring with them: the only table of them."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from transom.layers.depth import DepthRouter
from transom.layers.mixture import Mixture
from transom.layers.norm import BatchNorm
from transom.models.network import Network
from transom.parallel.world import World
from transom.training.objectives.batch_norm import RunningStatistics
from transom.training.objectives.objective import AuxiliaryObjective
from transom.training.objectives.router_losses import DepthAgreement, ExpertBalance

COMPONENTS: dict[type[nn.Module], Callable[[Network, Mapping[str, Any], World], AuxiliaryObjective]] = {
    Mixture: ExpertBalance,
    DepthRouter: DepthAgreement,
    BatchNorm: RunningStatistics,
}
"""By the class of a module, the objective of all modules of that class, which it takes by their addresses."""


def auxiliary_objectives(model: Network, world: World) -> list[AuxiliaryObjective]:
    """Return the objectives of the components of ``model``, which ``world``'s processes share; none for most models."""
    found = {kind: {name: module for name, module in model.named_modules() if isinstance(module, kind)} for kind in COMPONENTS}
    return [COMPONENTS[kind](model, modules, world) for kind, modules in found.items() if modules]
