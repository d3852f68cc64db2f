"""A contrastive loss over the ranks of a batch: the targets of all parts are the negatives of each part, as in one process."""

from transom.data.batch import Batch
from transom.models.base import Network
from transom.models.encoder import TextEmbedderTransformer
from transom.parallel.axes.negatives import add_targets
from transom.parallel.processes.collectives import World
from transom.training.objectives.objective import ForwardPass, MicroBatchLoss, Objective


class SharedNegatives(Objective):
    """An objective whose output projection has the targets of all ranks, those of this rank first, as its labels expect.

    Each rank computes the loss of its own rows. The backward pass returns the gradients of the targets to their ranks, which sum them, so
    that the gradients of all ranks add up to those of one process.
    """

    def __init__(self, objective: Objective, world: World) -> None:
        """Let the ranks of ``world``, which have different parts of each batch, share their targets; all make equally many passes."""
        self._objective, self._world = objective, world
        self.sites, self.n_copies = objective.sites, objective.n_copies

    def prepare(self, batch: Batch) -> Batch:
        """Prepare a batch as the objective does."""
        return self._objective.prepare(batch)

    def loss(self, forward: ForwardPass) -> MicroBatchLoss:
        """Compute the loss of this rank's rows."""
        weight = add_targets(forward.weight, self._world, forward.counted)
        return self._objective.loss(forward._replace(weight=weight))


def share_negatives(objective: Objective, model: Network, world: World) -> Objective:
    """Return ``objective``, over the targets of all ranks if the model is a text embedder and several ranks share each batch."""
    shares = world.size > 1 and isinstance(model, TextEmbedderTransformer)
    return SharedNegatives(objective, world) if shares else objective
