"""The loss of a micro-batch on one pipeline stage: that of the task on the last, auxiliary losses of its own modules on each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transom.data.batch import Batch
from transom.parallel.axes.pipeline_stage import Activations, LogitFactors, StageLoss
from transom.parallel.axes.sequence import split_loss_mask
from transom.training.objectives.objective import AuxiliaryObjective, ForwardPass, Objective


@dataclass
class PipelineLoss:
    """Computes losses for ``Pipeline.forward_backward``.

    Attributes:
        objective: the task's training objective, computed on the last stage.
        auxiliary: auxiliary objectives of this stage's modules.
        n_target_tokens: number of target tokens of the whole batch, all copies counted.
        softcap: bound of the logits; None for no cap.
        part: which part of the labels is this rank's, and the number of parts.
        scale: multiplies the loss before the backward pass, such as ``GradScaler.scale``.
    """

    objective: Objective
    auxiliary: Sequence[AuxiliaryObjective]
    n_target_tokens: float
    softcap: float | None = None
    part: tuple[int, int] = (0, 1)
    scale: Callable[[Tensor], Tensor] = lambda loss: loss

    def __call__(self, batch: Batch, factors: LogitFactors | None, activations: Activations, counted: bool = True) -> StageLoss:
        """Compute this stage's contribution to the mean loss of the whole batch, and on the last stage the sums to log.

        Auxiliary objectives, which sum over the batch, do not see a micro-batch that is not counted.
        """
        hidden, weight = (torch.empty(0, 0), torch.empty(0, 0)) if factors is None else factors
        loss_mask = split_loss_mask(batch.loss_mask, *self.part, self.objective.n_copies)
        forward = ForwardPass(batch, hidden, weight, activations, loss_mask, self.softcap, counted)
        own = sum(each.loss(forward) for each in self.auxiliary) if counted else 0.0
        if factors is None:
            return StageLoss(self.scale(own) if isinstance(own, Tensor) else None)
        backward_loss, loss, nll = self.objective.loss(forward)
        return StageLoss(self.scale(backward_loss / self.n_target_tokens + own), loss, nll)
