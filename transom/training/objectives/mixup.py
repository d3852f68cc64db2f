"""Mixup and CutMix: cross-entropy with mixed labels."""

from dataclasses import dataclass

from transom.data.batch import ImageBatch
from transom.training.losses import mixup_cross_entropy
from transom.training.objectives.objective import CrossEntropy, ForwardPass, MicroBatchLoss


@dataclass
class MixupCrossEntropy(CrossEntropy):
    """Cross-entropy of both labels of a mixed image, weighted by lam and 1 - lam (Zhang et al. 2018; Yun et al. 2019)."""

    def loss(self, forward: ForwardPass) -> MicroBatchLoss:
        """Compute the loss from full logits; a batch that is not mixed gets the cross-entropy of its labels."""
        batch = forward.batch
        if not isinstance(batch, ImageBatch) or batch.mixup is None:
            return super().loss(forward)
        hidden, own, other, lam = forward.at_labels(forward.hidden, batch.labels, batch.mixup.labels, batch.mixup.lam)
        loss, nll = mixup_cross_entropy(hidden @ forward.weight.T.to(hidden), (own, other), lam, self.label_smoothing)
        return MicroBatchLoss(loss, loss, nll)
