"""One optimizer step: forward and backward over the slices of a batch, clipping, and the update."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config.training import TrainingConfig
from transom.data.batch import Batch
from transom.models.base import Network
from transom.parallel.collectives import SINGLE_PROCESS, World
from transom.planning.flops import FROZEN_WEIGHTS_FACTOR
from transom.training.objectives.auxiliary import auxiliary_objectives
from transom.training.objectives.objective import Objective, RatioMetric, forward_pass


@dataclass(frozen=True)
class StepResult:
    """What a step measured.

    Attributes:
        loss: smoothed loss summed over the batch's true target tokens, in nats. This and all the rest are of the whole batch, over all
            processes.
        nll: negative log-likelihood, likewise.
        n_target_tokens: true target tokens.
        grad_norm: norm of the gradient of the mean loss, before clipping.
        flops: floating-point operations of forward and backward, padding included.
        skipped: samples that made loss or gradient non-finite; empty when the update was made.
        aux_metrics: what the objectives of the model's components measured; the loss above is without what they add to it.
    """

    loss: float
    nll: float
    n_target_tokens: int
    grad_norm: float
    flops: float
    skipped: tuple[int, ...] = ()
    aux_metrics: Mapping[str, float] = field(default_factory=dict)


class TrainStep:
    """Makes optimizer steps.

    The loss is summed over the slices of a batch and divided once by the batch's true number of target tokens, so that a batch
    gives the same update however it is sliced, and however its slices are dealt out to processes: gradients are summed over them.

    Attributes:
        objective: what the task is learned from.
        auxiliary: what the model's components add to it.
        metrics: by their keys in ``metrics.jsonl``, the figures made of what these measure.
    """

    def __init__(
        self,
        model: Network,
        optimizer: torch.optim.Optimizer,
        training: TrainingConfig,
        dtype: torch.dtype,
        objective: Objective,
        world: World = SINGLE_PROCESS,
    ) -> None:
        """Hold the model and its optimizer.

        Args:
            model: in training, the same in all processes.
            optimizer: of its parameters.
            training: what the recipe says of a step.
            dtype: of the matrix products.
            objective: what the task is learned from.
            world: the processes that the batch is dealt out to.
        """
        self.model = model
        self.optimizer = optimizer
        self.training = training
        self.dtype = dtype
        self.backward_flops_fraction = 1.0 if all(p.requires_grad for p in model.parameters()) else FROZEN_WEIGHTS_FACTOR
        self.world = world
        self.device = model.device
        self.objective = objective
        self.auxiliary = auxiliary_objectives(model, world)
        self.metrics: dict[str, RatioMetric] = {key: ratio for each in self.auxiliary for key, ratio in each.metrics.items()}
        self.sites = [*self.objective.sites, *(site for each in self.auxiliary for site in each.sites)]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=dtype == torch.float16)

    def step(self, micro_batches: Sequence[Batch], learning_rate: float, flops: float = 0.0) -> StepResult:
        """Update the weights once from the slices of one batch.

        A non-finite loss or gradient leaves weights and optimizer as they were, and the samples that caused it are named.

        Args:
            micro_batches: of this process.
            learning_rate: of this step.
            flops: floating-point operations of one forward and backward pass over the slices, all weights learning.
        """
        flops *= self.objective.n_copies * self.backward_flops_fraction
        n_target_tokens, flops = self.world.all_reduce_scalars(sum(batch.n_target_tokens for batch in micro_batches), flops)
        micro_batches = [self.objective.prepare(batch.to(self.device)) for batch in micro_batches]
        with self.autocast():
            for each in self.auxiliary:
                each.prepare(micro_batches)
        loss = nll = 0.0
        for batch in micro_batches:
            mean_loss, micro_loss, micro_nll = self._forward(batch, self.objective.n_copies * n_target_tokens)
            self.scaler.scale(mean_loss).backward()
            loss, nll = loss + micro_loss.item(), nll + micro_nll.item()
        loss, nll = (total / self.objective.n_copies for total in self.world.all_reduce_scalars(loss, nll))
        self._all_reduce_gradients()
        self.scaler.unscale_(self.optimizer)
        grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.training.max_grad_norm or float("inf")).item()
        finite = math.isfinite(loss) and math.isfinite(grad_norm)
        self._update(finite, learning_rate)
        measured = {name: value for each in self.auxiliary for name, value in each.after_update(finite).items()}
        return StepResult(
            loss, nll, int(n_target_tokens), grad_norm, flops, () if finite else self._non_finite_samples(micro_batches), measured
        )

    def _forward(self, batch: Batch, n_target_tokens: float) -> tuple[Float[Tensor, ""], Float[Tensor, ""], Float[Tensor, ""]]:
        """Compute what a slice contributes to the mean loss of the whole batch, and its loss and negative log-likelihood."""
        with self.autocast():
            forward = forward_pass(self.model, batch, self.sites)
            backward_loss, loss, nll = self.objective.loss(forward)
            return backward_loss / n_target_tokens + sum(each.loss(forward) for each in self.auxiliary), loss, nll

    def _update(self, finite: bool, learning_rate: float) -> None:
        """Let the optimizer take its step; a scaler is told of steps that are not finite too, and skips them itself."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if finite or self.scaler.is_enabled():
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def autocast(self) -> torch.autocast:
        """Run matrix products in ``dtype``; weights, residual stream and statistics stay in float32."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def _all_reduce_gradients(self) -> None:
        """Sum the gradients over all processes; one whose part of the batch is empty contributes zeros."""
        if self.world.size > 1:
            parameters = [p for p in self.model.parameters() if p.requires_grad]
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            for parameter, gradient in zip(parameters, self.world.all_reduce(gradients), strict=True):
                parameter.grad = gradient

    def _non_finite_samples(self, micro_batches: Sequence[Batch]) -> tuple[int, ...]:
        """Name the samples with a logit that is not finite; all of the batch where there is none."""
        non_finite: list[int] = []
        with torch.no_grad(), self.autocast():
            for batch in micro_batches:
                finite = self.model(batch).isfinite().all(-1) | ~batch.loss_mask
                whole_rows = finite.reshape(len(batch.sample_ids), -1).all(-1).tolist()
                non_finite += [sample for sample, whole in zip(batch.sample_ids, whole_rows, strict=True) if not whole]
        non_finite = self.world.all_gather_lists(non_finite) or self.world.all_gather_lists(
            [sample for batch in micro_batches for sample in batch.sample_ids]
        )
        return tuple(dict.fromkeys(non_finite))
