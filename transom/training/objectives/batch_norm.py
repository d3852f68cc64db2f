"""The running statistics of batch norm, which move once per step."""

from collections.abc import Mapping

from transom.layers.norm import BatchNorm
from transom.models.network import Network
from transom.parallel.world import World
from transom.training.objectives.objective import AuxiliaryObjective


class RunningStatistics(AuxiliaryObjective):
    """Moves the running mean and variance of every batch norm by what all passes of a step saw; it adds no loss."""

    def __init__(self, model: Network, norms: Mapping[str, BatchNorm], world: World) -> None:
        """Hold the norms of ``model``; statistics are of one process."""
        self._norms = norms.values()

    def after_update(self, updated: bool) -> Mapping[str, float]:
        """Move the statistics, unless the step was skipped."""
        for norm in self._norms:
            norm.end_step(updated)
        return {}
