"""Losses of trivial predictors, computed from validation data alone."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from transom.data.batch import Batch, LanguageBatch, MaskedBatch, MultiLabelTextBatch, TranslationBatch

PRIOR = 5.0
"""Weight, in samples, of the frequencies of all labels in the distribution of those after one token."""


class Labels(NamedTuple):
    """Labels of validation data.

    Attributes:
        labels: label of each prediction.
        contexts: token by which a simple predictor guesses the label: the previous token, or the tagged token; None if there is none.
    """

    labels: Tensor
    contexts: Tensor | None


def collect_labels(batches: Sequence[Batch], tags: bool) -> Labels:
    """Collect the labels that contribute to the loss, with the tokens from which they can be guessed.

    Args:
        batches: validation batches.
        tags: whether labels belong to the token at their own position, as tags do.
    """
    labels = torch.cat([batch.labels[batch.loss_mask] for batch in batches])
    if tags:
        return Labels(labels, torch.cat([batch.source.tokens[batch.loss_mask] for batch in batches if isinstance(batch, MaskedBatch)]))
    if all(isinstance(batch, LanguageBatch | TranslationBatch) for batch in batches):
        inputs = [batch.decoder_input.tokens[batch.loss_mask] for batch in batches if isinstance(batch, LanguageBatch | TranslationBatch)]
        return Labels(labels, torch.cat(inputs))
    return Labels(labels, None)


def unigram_loss(labels: Tensor, n_choices: int) -> float:
    """Return the mean -ln p of labels by the frequencies of all other labels, in nats, with one more count spread over all choices.

    Leaving each label out makes the loss that of new data, however few there are.
    """
    counts = labels.bincount(minlength=n_choices).double()
    p = (counts[labels] - 1 + 1 / n_choices) / len(labels)
    return float(-p.log().mean())


def bigram_loss(labels: Tensor, contexts: Tensor, n_choices: int) -> float:
    """Return the mean -ln p of labels by the frequencies of labels in the same context, mixed with those of all labels, in nats.

    p(y | x) = (n(x, y) + mu p(y)) / (n(x) + mu) with mu = ``PRIOR``, counted over all other labels (Dirichlet prior; MacKay & Peto 1995).
    """
    counts = labels.bincount(minlength=n_choices).double()
    p = (counts[labels] - 1 + 1 / n_choices) / len(labels)
    n_context = contexts.bincount().double()[contexts] - 1
    _, pair, of_pair = (contexts * n_choices + labels).unique(return_inverse=True, return_counts=True)
    return float(-(((of_pair[pair] - 1) + PRIOR * p) / (n_context + PRIOR)).log().mean())


def label_set_losses(batches: Sequence[Batch]) -> tuple[float, float]:
    """Return the binary cross-entropy of probabilities 1/2, and of the frequency of each label over the other texts, in nats per text."""
    labels = torch.cat([batch.labels for batch in batches if isinstance(batch, MultiLabelTextBatch)]).double()
    n = len(labels)
    p = ((labels.sum(0) - labels + 0.5) / n).clamp(1e-6, 1 - 1e-6)
    return labels.shape[1] * math.log(2), float(-(labels * p.log() + (1 - labels) * (1 - p).log()).sum(1).mean())
