"""Running statistics of batch norm, updated once per step."""

from collections.abc import Mapping, Sequence

from transom.data.batch import Batch
from transom.layers.norm import BatchNorm, BatchStatistics
from transom.models.base import Network
from transom.parallel.processes.collectives import World
from transom.training.objectives.objective import AuxiliaryObjective, ForwardPass


class BatchNormStatistics(AuxiliaryObjective):
    """Updates running mean and variance of all batch norms from all forward passes of a step; adds no loss."""

    def __init__(self, model: Network, norms: Mapping[str, BatchNorm], world: World) -> None:
        """Record the batch statistics of ``norms``, which are given by module path; recipes allow batch norm in a single process only."""
        self._norms = norms
        self.sites = [f"{name}.{part}" for name in norms for part in BatchStatistics._fields]

    def prepare(self, micro_batches: Sequence[Batch]) -> None:
        """Discard the statistics of the previous step."""
        self._passes: dict[str, list[BatchStatistics]] = {name: [] for name in self._norms}

    def loss(self, forward: ForwardPass) -> float:
        """Collect the statistics of a forward pass; return 0."""
        for name, passes in self._passes.items():
            parts = ([x.detach() for x in forward.activations[f"{name}.{part}"]] for part in BatchStatistics._fields)
            passes += map(BatchStatistics, *parts)
        return 0.0

    def after_update(self, updated: bool) -> Mapping[str, float]:
        """Update the running statistics, unless the step was skipped."""
        for name, norm in self._norms.items() if updated else ():
            norm.update_running_statistics(self._passes[name])
        return {}
