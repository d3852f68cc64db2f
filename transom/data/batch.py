"""Batches, which a model's ``forward`` takes as its argument, and the grouping of samples into batches by length."""

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from transom.data.tokenizer.special_tokens import OWN_TOKENS, PAD, SpecialTokens

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class _MovesToDevice:
    """Base of dataclasses that move all their tensors to a device, including the tensors of nested dataclasses."""

    def to(self, device: torch.device) -> Self:
        """Return a copy whose tensors are on ``device``; cached properties are computed before, as later they would wait for a GPU."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = replace(self, **{name: x.to(device) for name, x in values.items() if isinstance(x, Tensor | _MovesToDevice)})
        vars(moved).update({name: getattr(self, name) for name, x in vars(type(self)).items() if isinstance(x, cached_property)})
        return moved


@dataclass(frozen=True)
class PaddedSequences(_MovesToDevice):
    """Token sequences arranged in rows, which are padded to the same length.

    A row contains one sequence, or several sequences packed one after another. Padding follows the last sequence.

    Attributes:
        tokens: token ids, with the padding token of the tokenizer at padding.
        positions: position of each token in its own sequence, starting at 0. A single row if all rows have the same positions.
        segments: number of each token's sequence within its row, starting at 1, and 0 at padding. A token attends only to tokens of the
            same segment.
        lengths: number of tokens in each row, excluding padding.
        prefix: True at tokens that belong to a prefix of their sequence, such as a prompt. None if no sequence has a prefix.
        text_length: length that each text may reach after further tokens, as in ``models.inputs.TokenSequences``; None if the texts are
            complete.
        token_types: type of each token, such as 0 in the first text of a pair and 1 in the second. None if all tokens are of type 0.
    """

    tokens: Int[Tensor, "batch length"]
    positions: Int[Tensor, "#batch length"]
    segments: Int[Tensor, "batch length"]
    lengths: Int[Tensor, "batch"]
    prefix: Bool[Tensor, "batch length"] | None = None
    text_length: int | None = None
    token_types: Int[Tensor, "batch length"] | None = None

    @classmethod
    def pad(cls, rows: Sequence[Sequence[int]], padding: int = PAD) -> "PaddedSequences":
        """Put one sequence in each row and pad all rows with the token ``padding`` to the length of the longest row."""
        max_length = max(map(len, rows))
        lengths = torch.tensor([len(row) for row in rows])
        tokens = torch.tensor([list(row) + [padding] * (max_length - len(row)) for row in rows])
        positions = torch.arange(max_length)[None]
        return cls(tokens, positions, (positions < lengths[:, None]).long(), lengths)


@runtime_checkable
class Batch(Protocol):
    """Interface of all training batches, independent of the kind of model."""

    @property
    def labels(self) -> Int[Tensor, "..."]:
        """Label of each prediction of the model."""
        ...

    @property
    def loss_mask(self) -> Bool[Tensor, "..."]:
        """True at the labels that contribute to the loss."""
        ...

    @property
    def sample_ids(self) -> tuple[int, ...]:
        """Index in the data set of each row's first sample, for error messages."""
        ...

    @property
    def n_target_tokens(self) -> int:
        """Number of labels that contribute to the loss, over which gradient accumulation averages."""
        ...

    def to(self, device: torch.device) -> Self: ...


def duplicate_batch(batch: Any) -> Any:
    """Concatenate a batch, or a ``PaddedSequences``, with itself along the rows.

    R-Drop uses the duplicated batch to compare two forward passes with different dropout masks (Liang et al. 2021).
    """

    def doubled(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x if len(x) == 1 < n_rows else torch.cat([x, x])  # a single row of positions serves all rows
        return duplicate_batch(x) if isinstance(x, PaddedSequences) else x + x if isinstance(x, tuple) else x

    n_rows = len(batch.tokens if isinstance(batch, PaddedSequences) else batch.sample_ids)
    return replace(batch, **{field.name: doubled(getattr(batch, field.name)) for field in fields(batch)})


def take_rows(batch: Any, rows: slice) -> Any:
    """Return some rows of a batch, or of a part of it such as a ``PaddedSequences``; a single row that serves all rows is kept."""

    def taken(x: Any, n_rows: int) -> Any:
        if isinstance(x, Tensor):
            return x if len(x) == 1 < n_rows else x[rows]
        if isinstance(x, tuple):
            return x[rows]
        if x is None or isinstance(x, int):
            return x
        return replace(x, **{field.name: taken(getattr(x, field.name), n_rows) for field in fields(x)})

    return taken(batch, len(batch.sample_ids))


def split_rows(batch: Any, n_parts: int) -> list[Any]:
    """Split a batch into ``n_parts`` parts of about equally many rows, or into single rows if it has fewer."""
    n_rows = len(batch.sample_ids)
    ends = [n_rows * i // n_parts for i in range(n_parts + 1)] if n_rows > n_parts else range(n_rows + 1)
    return [batch] if n_parts == 1 or n_rows == 1 else [take_rows(batch, slice(*ends_of_part)) for ends_of_part in pairwise(ends)]


@dataclass(frozen=True)
class TranslationBatch(_MovesToDevice):
    """Batch of sentence pairs for teacher forcing.

    Attributes:
        source: source tokens, with the special tokens around a source, such as the end-of-sequence token.
        decoder_input: the start token, followed by the target tokens. These are the labels shifted right by one.
        labels: target tokens, followed by the end-of-sequence token. Padding where ``decoder_input`` is padding.
        sample_ids: index of each row's pair in the data set, for error messages.
    """

    source: PaddedSequences
    decoder_input: PaddedSequences
    labels: Int[Tensor, "batch target"]
    sample_ids: tuple[int, ...]

    @property
    def loss_mask(self) -> Bool[Tensor, "batch target"]:
        """True at every token that is not padding."""
        return self.decoder_input.segments > 0

    @cached_property
    def n_target_tokens(self) -> int:
        """Number of labels, excluding padding. Each target contributes its tokens and one end-of-sequence token."""
        return int(self.decoder_input.lengths.sum())


def translation_batch(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    samples: Sequence[int],
    source_tokens: SpecialTokens = OWN_TOKENS,
    target_tokens: SpecialTokens = OWN_TOKENS,
) -> TranslationBatch:
    """Build a batch for teacher forcing.

    The decoder reads the start token and the target tokens. It predicts the target tokens and the end-of-sequence token.

    Args:
        sources: token ids of each source, without special tokens.
        targets: token ids of each target, without special tokens.
        samples: index of each pair in the data set.
        source_tokens: special tokens of the sources.
        target_tokens: special tokens of the targets.
    """
    predicted, padding = [target_tokens.seq2seq.surround(row) for row in targets], target_tokens.padding
    target = PaddedSequences.pad([[target_tokens.decoder_start, *row[:-1]] for row in predicted], padding)
    source = PaddedSequences.pad([source_tokens.seq2seq.surround(row) for row in sources], source_tokens.padding)
    return TranslationBatch(source, target, PaddedSequences.pad(predicted, padding).tokens, tuple(samples))


@dataclass(frozen=True)
class LanguageBatch(_MovesToDevice):
    """Batch of text for next-token prediction, such as windows of documents or instructions with their answers.

    Attributes:
        decoder_input: the text, with a special token before each document. A row may contain parts of several documents, each of
            which is a segment. A document may start with a prefix, whose tokens do not contribute to the loss.
        labels: the next token at each position. Padding where ``decoder_input`` is padding.
        sample_ids: index in the data set of the sample that each row begins with, for error messages.
    """

    decoder_input: PaddedSequences
    labels: Int[Tensor, "batch target"]
    sample_ids: tuple[int, ...]

    @property
    def loss_mask(self) -> Bool[Tensor, "batch target"]:
        """True at every token that is neither padding nor part of a prefix."""
        token_mask = self.decoder_input.segments > 0
        return token_mask if self.decoder_input.prefix is None else token_mask & ~self.decoder_input.prefix

    @cached_property
    def n_target_tokens(self) -> int:
        """Number of labels that contribute to the loss, excluding padding and prefixes."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True)
class MaskedBatch(_MovesToDevice):
    """Batch of texts with masked tokens, for masked language modeling.

    Attributes:
        source: the corrupted text, in which most of the selected tokens are replaced by the mask token or a random token.
        labels: the original tokens.
        loss_mask: True at the selected tokens, which are the only ones that the model must predict.
        sample_ids: index in the data set of the sample that each row begins with, for error messages.
    """

    source: PaddedSequences
    labels: Int[Tensor, "batch source"]
    loss_mask: Bool[Tensor, "batch source"]
    sample_ids: tuple[int, ...]

    @cached_property
    def n_target_tokens(self) -> int:
        """Number of tokens selected for prediction."""
        return int(self.loss_mask.sum())


class _OneLabelPerSample:
    """Base of batches with one label per sample, all of which contribute to the loss."""

    labels: Int[Tensor, "batch"]

    @property
    def loss_mask(self) -> Bool[Tensor, "batch"]:
        """All True: every sample contributes to the loss."""
        return torch.ones_like(self.labels, dtype=torch.bool)

    @cached_property
    def n_target_tokens(self) -> int:
        """Number of samples."""
        return len(self.labels)


@dataclass(frozen=True)
class LabeledTextBatch(_OneLabelPerSample, _MovesToDevice):
    """Batch of texts, each with one class.

    Attributes:
        source: the texts, with the special tokens of the tokenizer around each.
        labels: class index of each text.
        sample_ids: index of each row's text in the data set, for error messages.
    """

    source: PaddedSequences
    labels: Int[Tensor, "batch"]
    sample_ids: tuple[int, ...]


@dataclass(frozen=True)
class MultiLabelTextBatch(_MovesToDevice):
    """Texts with any number of labels each.

    Attributes:
        source: the texts, with the special tokens of the tokenizer around each.
        labels: 1 at the labels of each text, 0 elsewhere.
        sample_ids: index of each row's text in the data set, for error messages.
    """

    source: PaddedSequences
    labels: Float[Tensor, "batch classes"]
    sample_ids: tuple[int, ...]

    @property
    def loss_mask(self) -> Bool[Tensor, "batch"]:
        """All True: every text contributes to the loss."""
        return torch.ones(len(self.labels), dtype=torch.bool, device=self.labels.device)

    @cached_property
    def n_target_tokens(self) -> int:
        """Number of texts."""
        return len(self.labels)


@dataclass(frozen=True)
class MixupLabels(_MovesToDevice):
    """Partner labels of images mixed by mixup or CutMix.

    Each image is mixed with another image of the batch, its partner. The loss is
    lam * CE(own label) + (1 - lam) * CE(partner's label) (Zhang et al. 2018).

    Attributes:
        labels: class index of each image's partner.
        lam: fraction of each mixed image that comes from the original image rather than from the partner, from 0 to 1.
    """

    labels: Int[Tensor, "batch"]
    lam: Float[Tensor, "batch"]


@dataclass(frozen=True)
class ImageBatch(_OneLabelPerSample, _MovesToDevice):
    """Batch of images, each with one class, or with two classes under mixup or CutMix.

    Attributes:
        pixels: pixel values from 0 to 1.
        labels: class index of each image.
        sample_ids: index of each image in the data set, for error messages.
        mixup: labels of the images' partners. None if images are not mixed.
    """

    pixels: Float[Tensor, "batch channels height width"]
    labels: Int[Tensor, "batch"]
    sample_ids: tuple[int, ...]
    mixup: MixupLabels | None = None


@dataclass(frozen=True)
class ContrastiveBatch(_MovesToDevice):
    """Batch of text pairs for contrastive learning.

    Row i of ``source`` and row i of ``target`` form a positive pair. All other combinations in the batch are negatives.

    Attributes:
        source: first text of each pair (the anchor), with the special tokens around it.
        target: second text of each pair (the positive), with the special tokens around it.
        sample_ids: index of each row's pair in the data set, for error messages.
    """

    source: PaddedSequences
    target: PaddedSequences
    sample_ids: tuple[int, ...]

    @property
    def labels(self) -> Int[Tensor, "batch"]:
        """Row of each anchor's positive in ``target``, which is always the anchor's own row."""
        return torch.arange(len(self.sample_ids), device=self.source.tokens.device)

    @property
    def loss_mask(self) -> Bool[Tensor, "batch"]:
        """All True: every pair contributes to the loss."""
        return torch.ones_like(self.labels, dtype=torch.bool)

    @cached_property
    def n_target_tokens(self) -> int:
        """Number of text pairs, each of which has one label."""
        return len(self.sample_ids)


def contrastive_batch(
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    samples: Sequence[int],
    source_tokens: SpecialTokens = OWN_TOKENS,
    target_tokens: SpecialTokens = OWN_TOKENS,
) -> ContrastiveBatch:
    """Build a contrastive batch, in which the tokenizer's template surrounds each text.

    Args:
        sources: token ids of the first text of each pair, without special tokens.
        targets: token ids of the second text of each pair, without special tokens.
        samples: index of each pair in the data set.
        source_tokens: special tokens of the first texts.
        target_tokens: special tokens of the second texts.
    """
    sides = (sources, source_tokens), (targets, target_tokens)
    left, right = (PaddedSequences.pad([special.text(row) for row in side], special.padding) for side, special in sides)
    return ContrastiveBatch(left, right, tuple(samples))


def batch_by_tokens(order: Indices, lengths: Indices, batch_tokens: int) -> Iterator[Indices]:
    """Split ordered samples into consecutive batches of at most ``batch_tokens`` tokens.

    The size of a batch is its number of samples times the length of its longest sample, so padding counts.

    Args:
        order: sample indices, in which samples of similar length should be neighbors to save padding.
        lengths: number of tokens of each sample, by sample index.
        batch_tokens: maximum number of tokens per batch, including padding. A longer sample forms a batch of its own.
    """
    start, max_length = 0, 0
    for end, length in enumerate(lengths[order].tolist()):
        max_length = max(max_length, length)
        if end > start and max_length * (end + 1 - start) > batch_tokens:
            yield order[start:end]
            start, max_length = end, length
    if start < len(order):
        yield order[start:]


def sequence_lengths(rows: Sequence[Sized]) -> Indices:
    """Return the number of tokens of each row."""
    return np.fromiter(map(len, rows), np.int64, len(rows))
