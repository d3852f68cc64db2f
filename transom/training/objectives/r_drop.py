"""R-Drop: two forward passes per batch with different dropout masks, and a divergence between their predictions."""

from dataclasses import dataclass

from transom.config.training import RDropTrainingConfig
from transom.data.batch import Batch, duplicate_batch
from transom.training.losses import linear_cross_entropy
from transom.training.objectives.objective import CrossEntropy, ForwardPass, MicroBatchLoss


@dataclass
class RDrop(CrossEntropy):
    """R-Drop (Liang et al. 2021, eq. 4): per label, -log p - log q + alpha / 2 (KL(p || q) + KL(q || p)).

    p and q are the predictions of two forward passes with different dropout masks.

    Attributes:
        alpha: weight of the divergence.
    """

    alpha: float
    n_copies = 2

    def prepare(self, batch: Batch) -> Batch:
        """Duplicate the batch, so that one forward pass makes two predictions per label with different dropout masks."""
        duplicated: Batch = duplicate_batch(batch)
        return duplicated

    def loss(self, forward: ForwardPass) -> MicroBatchLoss:
        """Compute the loss from the two predictions of each label in a duplicated batch."""
        pairs = (x.unflatten(0, (2, -1)) for x in forward.at_labels(forward.hidden, forward.batch.labels))
        hidden, labels = (pair.transpose(0, 1).flatten(0, 1) for pair in pairs)
        loss, nll = linear_cross_entropy(hidden, forward.weight, labels, self.label_smoothing, self.alpha, forward.softcap)
        return MicroBatchLoss(loss, loss, nll)


def choose_text_loss(training: RDropTrainingConfig) -> CrossEntropy:
    """Choose the loss of a text task: R-Drop if the recipe sets ``training.r_drop``, else cross-entropy."""
    return RDrop(training.label_smoothing, training.r_drop) if training.r_drop else CrossEntropy(training.label_smoothing)
