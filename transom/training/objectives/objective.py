"""The two kinds of objective: the loss of a task, cross-entropy for most; and the terms that components of a model bring with them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor

from transom.data.batch import Batch
from transom.layers.observe import ActivationRecorder
from transom.models.base import Network
from transom.training.losses import linear_cross_entropy


class ForwardPass(NamedTuple):
    """A batch and what the model computed from it.

    Attributes:
        batch: the slice of a batch that was read.
        hidden: the last vectors, of which the logits are a linear map.
        weight: the matrix of that map.
        activations: of each observed site, by its address: one tensor per pass through the site; none where a layer has the site in
            training only, and is not in training.
    """

    batch: Batch
    hidden: Float[Tensor, "*places d_model"]
    weight: Float[Tensor, "vocab d_model"]
    activations: Mapping[str, Sequence[Tensor]]


def forward_pass(model: Network, batch: Batch, sites: Sequence[str] = ()) -> ForwardPass:
    """Run the model on a batch and record the activations at ``sites``."""
    recorder = ActivationRecorder(sites)
    hidden, weight = model.logit_factors(batch, recorder if sites else None)
    passes = recorder.passes
    return ForwardPass(batch, hidden, weight, {site: [each[site] for each in passes if site in each] for site in sites})


class MicroBatchLoss(NamedTuple):
    """The loss of a slice, in nats, summed over its true target tokens.

    Attributes:
        backward_loss: the loss that the gradient is taken of.
        loss: the loss that is reported.
        nll: the negative log-likelihood, reported too.
    """

    backward_loss: Float[Tensor, ""]
    loss: Float[Tensor, ""]
    nll: Float[Tensor, ""]


class RatioMetric(NamedTuple):
    """A figure of ``metrics.jsonl``: the quotient of two sums over the steps since the last line.

    Attributes:
        sum: name of the measurement that is summed.
        per: name of the sum that it is divided by; None where the sum itself is the figure.
    """

    sum: str
    per: str | None


N_UPDATES = "updates"
"""The name, in a ``RatioMetric``, of the number of steps that were not skipped."""


class Objective(ABC):
    """The loss that a task is learned from.

    Attributes:
        sites: addresses of the activations that ``loss`` reads.
        n_copies: how often ``prepare`` makes the model read each sample.
    """

    sites: Sequence[str] = ()
    n_copies: int = 1

    def prepare(self, batch: Batch) -> Batch:
        """Return the slice of a batch that the model is to read."""
        return batch

    @abstractmethod
    def loss(self, forward: ForwardPass) -> MicroBatchLoss:
        """Compute the loss of a slice, summed over its true target tokens, and over all readings of them."""


@dataclass
class CrossEntropy(Objective):
    """The cross-entropy of the labels that count; padding contributes nothing.

    Attributes:
        label_smoothing: probability spread evenly over the vocabulary, or the classes (Szegedy et al. 2016, section 7).
    """

    label_smoothing: float

    def loss(self, forward: ForwardPass) -> MicroBatchLoss:
        """Compute it without ever holding all logits."""
        loss_mask, labels = forward.batch.loss_mask, forward.batch.labels
        loss, nll = linear_cross_entropy(forward.hidden[loss_mask], forward.weight, labels[loss_mask], self.label_smoothing)
        return MicroBatchLoss(loss, loss, nll)


class AuxiliaryObjective:
    """A term that components of a model add to the mean loss of a batch, and what they need done in every step.

    A step calls ``prepare`` once, ``loss`` after the forward pass of each slice, and ``after_update`` once. What is summed over tokens is
    divided once, by the number of the whole batch, over all slices and processes.

    Attributes:
        metrics: by their keys in ``metrics.jsonl``, the figures made of this objective's measurements.
        sites: addresses of the activations that ``loss`` reads.
    """

    metrics: ClassVar[Mapping[str, RatioMetric]] = {}
    sites: Sequence[str] = ()

    def prepare(self, micro_batches: Sequence[Batch]) -> None:
        """Prepare for a step on the slices of a batch, which are where the model is."""

    def loss(self, forward: ForwardPass) -> Float[Tensor, ""] | float:
        """Compute what a slice adds to the mean loss of the whole batch."""
        return 0.0

    def after_update(self, updated: bool) -> Mapping[str, float]:
        """Finish a step and return its measurements, over all processes.

        Args:
            updated: False where the step was skipped for a non-finite loss or gradient.
        """
        return {}
