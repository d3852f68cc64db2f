"""One optimizer step: forward and backward over the slices of a batch, clipping, and the update."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transom.config.training import ConsistentTraining, Training
from transom.data.batch import Batch, ImageBatch, twice
from transom.layers.norm import BatchNorm
from transom.layers.observe import ActivationRecorder
from transom.models.network import Network
from transom.parallel.world import ALONE, World
from transom.planning.flops import OF_FROZEN_MAPS
from transom.training.events import Load, Passed
from transom.training.exits import Exits
from transom.training.loss import linear_cross_entropy, mixed_cross_entropy
from transom.training.routers import Routers


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
        load: how busy the experts were, where the model has a mixture of them; the loss above is without what balances them.
        passed: how many tokens passed the blocks that only chosen ones pass, where there are such blocks.
    """

    loss: float
    nll: float
    n_target_tokens: int
    grad_norm: float
    flops: float
    skipped: tuple[int, ...] = ()
    load: Load | None = None
    passed: Passed | None = None


def batch_loss(
    model: Network, batch: Batch, smoothing: float, observer: ActivationRecorder | None = None, r_drop: float = 0.0
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return a batch's smoothed loss and negative log-likelihood, in nats, summed over the labels that count; padding counts nothing.

    With ``r_drop``, the batch is one that was repeated by ``twice``, and its two answers are drawn together.
    """
    (hidden, weight), counted = model.output(batch, observer), batch.counted
    if isinstance(batch, ImageBatch) and batch.mixed is not None:
        logits = hidden @ weight.T.to(hidden)
        return mixed_cross_entropy(logits, (batch.labels, batch.mixed.labels), batch.mixed.share, smoothing)
    hidden, labels = hidden[counted], batch.labels[counted]
    if r_drop:
        hidden, labels = (x.unflatten(0, (2, -1)).transpose(0, 1).flatten(0, 1) for x in (hidden, labels))
    return linear_cross_entropy(hidden, weight, labels, smoothing, r_drop)


class Stepper:
    """Makes optimizer steps.

    The loss is summed over the slices of a batch and divided once by the batch's true number of target tokens, so that a batch
    gives the same update however it is sliced, and however its slices are dealt out to processes: gradients are summed over them.
    """

    def __init__(
        self,
        model: Network,
        optimizer: torch.optim.Optimizer,
        training: Training,
        dtype: torch.dtype,
        flops: Callable[[Any], float] = lambda _: 0.0,
        world: World = ALONE,
    ) -> None:
        """Hold the model and its optimizer.

        Args:
            model: in training, the same in all processes.
            optimizer: of its parameters.
            training: what the recipe says of a step.
            dtype: of the matrix products.
            flops: counts a slice's floating-point operations, forward and backward; left out, they are not counted.
            world: the processes that the batch is dealt out to.
        """
        self.model = model
        self.optimizer = optimizer
        self.training = training
        self.dtype = dtype
        self.flops = flops
        self.share = 1.0 if all(p.requires_grad for p in model.parameters()) else OF_FROZEN_MAPS
        self.world = world
        self.device = model.device
        self.routers = Routers(model, world)
        self.exits = Exits(model, training)
        self.r_drop = training.r_drop if isinstance(training, ConsistentTraining) else 0.0
        self.batch_norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=dtype == torch.float16)

    def step(self, slices: Sequence[Batch], learning_rate: float) -> StepResult:
        """Update the weights once from the slices of one batch.

        A non-finite loss or gradient leaves weights and optimizer as they were, and the samples that caused it are named.
        """
        n_passes = 2 if self.r_drop else 1
        flops = n_passes * self.share * sum(map(self.flops, slices))
        n_target_tokens, flops = self.world.totals(sum(batch.n_target_tokens for batch in slices), flops)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        loss = nll = 0.0
        slices = [batch.to(self.device) for batch in (map(twice, slices) if self.r_drop else slices)]
        self.routers.begin(slices, self.autocast())
        for batch in slices:
            with self.autocast():
                recorder = ActivationRecorder([*self.routers.sites, *self.exits.sites])
                observer = recorder if recorder.wanted else None
                slice_loss, slice_nll = batch_loss(self.model, batch, self.training.label_smoothing, observer, self.r_drop)
                learnt = self.exits.loss(slice_loss, batch, self.training.label_smoothing, recorder)
            self.scaler.scale(learnt / (n_passes * n_target_tokens) + self.routers.loss(batch, recorder)).backward()
            loss, nll = loss + slice_loss.item() / n_passes, nll + slice_nll.item() / n_passes
        loss, nll = self.world.totals(loss, nll)
        self._share_gradients()
        self.scaler.unscale_(self.optimizer)
        grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip_norm or float("inf")).item()
        finite = math.isfinite(loss) and math.isfinite(grad_norm)
        if finite or self.scaler.is_enabled():
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        load, passed = self.routers.end(updated=finite), self.routers.passed()
        for norm in self.batch_norms:
            norm.end_step(updated=finite)
        return StepResult(loss, nll, int(n_target_tokens), grad_norm, flops, () if finite else self._culprits(slices), load, passed)

    def autocast(self) -> torch.autocast:
        """Run matrix products in ``dtype``; weights, residual stream and statistics stay in float32."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def _share_gradients(self) -> None:
        """Sum the gradients over all processes; one whose share of the batch is empty adds nothing."""
        if self.world.size > 1:
            parameters = [p for p in self.model.parameters() if p.requires_grad]
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            for parameter, gradient in zip(parameters, self.world.summed(gradients), strict=True):
                parameter.grad = gradient

    def _culprits(self, slices: Sequence[Batch]) -> tuple[int, ...]:
        """Name the samples with a logit that is not finite; all of the batch where there is none."""
        bad: list[int] = []
        with torch.no_grad(), self.autocast():
            for batch in slices:
                finite = self.model(batch).isfinite().all(-1) | ~batch.counted
                whole_rows = finite.reshape(len(batch.samples), -1).all(-1).tolist()
                bad += [sample for sample, whole in zip(batch.samples, whole_rows, strict=True) if not whole]
        bad = self.world.joint(bad) or self.world.joint([sample for batch in slices for sample in batch.samples])
        return tuple(dict.fromkeys(bad))
