"""R-Drop: each batch is read twice, under two dropout masks, and the two predictions are drawn together."""

from dataclasses import dataclass

from transom.config.training import ConsistentTraining
from transom.data.batch import Batch, twice
from transom.training.loss import linear_cross_entropy
from transom.training.objectives.objective import CrossEntropy, ForwardPass, SliceLoss


@dataclass
class RDrop(CrossEntropy):
    """-log p - log q + alpha / 2 (KL(p || q) + KL(q || p)) per label, p and q its two predictions (Liang et al. 2021, eq. 4).

    Attributes:
        alpha: weight of the divergence.
    """

    alpha: float
    n_readings = 2

    def prepare(self, batch: Batch) -> Batch:
        """Duplicate the batch, so that one forward pass draws both dropout masks."""
        doubled: Batch = twice(batch)
        return doubled

    def loss(self, forward: ForwardPass) -> SliceLoss:
        """Compute the loss with the two readings of each label side by side."""
        counted, labels = forward.batch.counted, forward.batch.labels
        hidden, labels = (x[counted].unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1) for x in (forward.hidden, labels))
        loss, nll = linear_cross_entropy(hidden, forward.weight, labels, self.smoothing, self.alpha)
        return SliceLoss(loss, loss, nll)


def text_objective(training: ConsistentTraining) -> CrossEntropy:
    """Return R-Drop where the recipe asks for it, cross-entropy otherwise."""
    return RDrop(training.label_smoothing, training.r_drop) if training.r_drop else CrossEntropy(training.label_smoothing)
