"""Binary cross-entropy of every class, for texts with any number of labels."""

from dataclasses import dataclass

from transom.training.losses import binary_cross_entropy
from transom.training.objectives.objective import ForwardPass, MicroBatchLoss, Objective


@dataclass
class BinaryCrossEntropy(Objective):
    """Binary cross-entropy, summed over the classes of a text; see ``losses.binary_cross_entropy``.

    Attributes:
        label_smoothing: probability spread evenly over the presence and absence of each label.
    """

    label_smoothing: float

    def loss(self, forward: ForwardPass) -> MicroBatchLoss:
        """Compute the loss of a micro-batch from its logits."""
        hidden, labels = forward.at_labels(forward.hidden, forward.batch.labels)
        loss, nll = binary_cross_entropy(hidden @ forward.weight.T.to(hidden), labels, self.label_smoothing)
        return MicroBatchLoss(loss, loss, nll.detach())
