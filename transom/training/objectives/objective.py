"""Base classes of objectives: the loss of a task, cross-entropy for most, and auxiliary terms of model components."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.data.batch import Batch
from transom.layers.dropout import keyed_rows
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network
from transom.parallel.processes.collectives import SINGLE_PROCESS, World
from transom.training.losses import linear_cross_entropy


class ForwardPass(NamedTuple):
    """Result of a forward pass over a micro-batch.

    Attributes:
        batch: the micro-batch.
        hidden: last hidden states, which the output projection maps to logits.
        weight: weight of the output projection.
        activations: recorded activations by site, the path of a module and a name; one tensor per pass through the site. Sites that exist
            only in training mode have an empty list in evaluation mode.
        loss_mask: True at the labels that contribute to the loss: the batch's mask, or the part of it that is this rank's.
        softcap: bound c of the logits c tanh(hidden @ weight.T / c); None for no cap.
        counted: False for a pass that only serves other ranks, whose loss gets weight 0.
        n_labels: number of labels in ``loss_mask``; None if counting them would wait for a GPU.
    """

    batch: Batch
    hidden: Float[Tensor, "*positions d_model"]
    weight: Float[Tensor, "vocab d_model"]
    activations: Mapping[str, Sequence[Tensor]]
    loss_mask: Bool[Tensor, "*positions"]
    softcap: float | None = None
    counted: bool = True
    n_labels: int | None = None

    def with_loss_mask(self, loss_mask: Bool[Tensor, "*positions"]) -> "ForwardPass":
        """Return this pass with another loss mask, whose labels are not counted."""
        return self._replace(loss_mask=loss_mask, n_labels=None)

    def at_labels(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return the elements of tensors (one or a vector per position) at the labels in the loss mask; views if these are all."""
        flat, mask = [x.flatten(0, self.loss_mask.dim() - 1) for x in tensors], self.loss_mask.flatten()
        if self.n_labels == len(mask):
            return flat
        rows = mask.nonzero()[:, 0] if self.n_labels is None else indices_of_true(mask, self.n_labels)
        return flat if len(rows) == len(mask) else [x.index_select(0, rows) for x in flat]


def indices_of_true(mask: Bool[Tensor, "length"], n: int) -> Int[Tensor, "n"]:
    """Return the indices of the ``n`` True elements of a mask; ``nonzero`` would wait for a GPU to count them."""
    place = torch.where(mask, mask.cumsum(0) - 1, n)
    return place.new_empty(n + 1).scatter_(0, place, torch.arange(len(mask), device=mask.device))[:n]


def forward_pass(model: Network, batch: Batch, sites: Sequence[str] = ()) -> ForwardPass:
    """Run the model on a batch and record the activations at ``sites``; within ``keyed_dropout`` the dropout masks are keyed by sample."""
    recorder = ActivationRecorder(sites)
    with keyed_rows(batch.sample_ids, model.device):
        hidden, weight = model.logit_factors(batch, recorder if sites else None)
    passes = recorder.passes
    activations = {site: [each[site] for each in passes if site in each] for site in sites}
    return ForwardPass(batch, hidden, weight, activations, batch.loss_mask, model.logit_softcap, n_labels=batch.n_target_tokens)


RecordActivations = Callable[[Sequence[Batch], Sequence[str]], Iterable[Mapping[str, Sequence[Tensor]]]]
"""Runs a model on micro-batches and yields the activations at some sites per micro-batch, as in ``ForwardPass``."""


class MicroBatchLoss(NamedTuple):
    """The loss of a micro-batch in nats, summed over its target tokens without padding.

    Attributes:
        backward_loss: loss from which gradients are computed.
        loss: loss that is logged.
        nll: negative log-likelihood that is logged.
    """

    backward_loss: Float[Tensor, ""]
    loss: Float[Tensor, ""]
    nll: Float[Tensor, ""]


class RatioMetric(NamedTuple):
    """A metric of ``metrics.jsonl``: the ratio of two sums over the steps since the last line.

    Attributes:
        sum: name of the sum in the numerator.
        per: name of the sum in the denominator; None if the metric is the first sum itself.
    """

    sum: str
    per: str | None


N_UPDATES = "updates"
"""Name, in a ``RatioMetric``, of the number of steps that were not skipped."""


class Objective(ABC):
    """The training loss of a task.

    Attributes:
        sites: names of the activations to record for ``loss``.
        n_copies: number of copies of each sample in the batch that ``prepare`` returns; 2 for R-Drop.
    """

    sites: Sequence[str] = ()
    n_copies: int = 1

    def prepare(self, batch: Batch) -> Batch:
        """Return the micro-batch for the forward pass; by default ``batch`` itself."""
        return batch

    @abstractmethod
    def loss(self, forward: ForwardPass) -> MicroBatchLoss:
        """Compute the loss of a micro-batch, summed over its target tokens; R-Drop sums over both forward passes."""


@dataclass
class CrossEntropy(Objective):
    """Cross-entropy with label smoothing over the labels in the loss mask; padding contributes nothing.

    Attributes:
        label_smoothing: probability spread evenly over the vocabulary or the classes (Szegedy et al. 2016, section 7).
    """

    label_smoothing: float

    def loss(self, forward: ForwardPass) -> MicroBatchLoss:
        """Compute the loss without materializing all logits."""
        hidden, labels = forward.at_labels(forward.hidden, forward.batch.labels)
        loss, nll = linear_cross_entropy(hidden, forward.weight, labels, self.label_smoothing, softcap=forward.softcap)
        return MicroBatchLoss(loss, loss, nll)


class AuxiliaryObjective:
    """A term that model components add to the mean loss of a batch, or an update that they need per step.

    A step calls ``prepare`` once, ``loss`` after the forward pass of each micro-batch, and ``after_update`` once. Losses summed over tokens
    are divided once, by the number of tokens of the whole batch over all micro-batches and processes.

    Attributes:
        metrics: metrics by their keys in ``metrics.jsonl``.
        sites: names of the activations to record for ``loss``.
        record: runs the model for an objective that needs activations of the whole batch before the first loss.
        stages: the ranks of a pipeline's stages, which have other modules.
    """

    metrics: ClassVar[Mapping[str, RatioMetric]] = {}
    sites: Sequence[str] = ()
    record: RecordActivations
    stages: World = SINGLE_PROCESS

    def prepare(self, micro_batches: Sequence[Batch]) -> None:
        """Start a step with these micro-batches, which are on the model's device."""

    def loss(self, forward: ForwardPass) -> Float[Tensor, ""] | float:
        """Compute a micro-batch's contribution to the mean loss of the batch."""
        return 0.0

    def after_update(self, updated: bool) -> Mapping[str, float]:
        """Finish a step; return the sums over all processes from which its metrics are computed.

        Args:
            updated: False if the step was skipped for a non-finite loss or gradient.
        """
        return {}
