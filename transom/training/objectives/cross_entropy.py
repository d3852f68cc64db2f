"""Cross-entropy with label smoothing, the objective of most tasks."""

from dataclasses import dataclass

from transom.training.loss import linear_cross_entropy
from transom.training.objectives.objective import ForwardPass, Objective, SliceLoss


@dataclass
class CrossEntropy(Objective):
    """The cross-entropy of the labels that count; padding contributes nothing.

    Attributes:
        smoothing: probability spread evenly over the vocabulary, or the classes (Szegedy et al. 2016, section 7).
    """

    smoothing: float

    def loss(self, forward: ForwardPass) -> SliceLoss:
        """Compute it without ever holding all logits."""
        counted, labels = forward.batch.counted, forward.batch.labels
        loss, nll = linear_cross_entropy(forward.hidden[counted], forward.weight, labels[counted], self.smoothing)
        return SliceLoss(loss, loss, nll)
