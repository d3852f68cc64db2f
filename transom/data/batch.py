"""Batches: what a model's ``forward`` takes, and how rows are cut into them by their lengths."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from transom.data.tokenizer.special import EOS, PAD, SOS

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class _OnDevice:
    """Tensors, and others of this sort, that go to a device as a whole."""

    def to(self, device: torch.device) -> Self:
        """Copy to ``device``."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: x.to(device) for name, x in held.items() if isinstance(x, Tensor | _OnDevice)})


@dataclass(frozen=True)
class Sequences(_OnDevice):
    """Token sequences laid out in rows.

    A row holds one sequence and padding, or several sequences packed one after another.

    Attributes:
        tokens: numbers of symbols, ``PAD`` where there is none.
        positions: place of each token in its own sequence, from 0; one row for all where they are the same.
        segments: number of the token's sequence in its row, from 1; 0 is padding. Tokens see each other only within a segment.
        lengths: real tokens a row.
        prefix: True at tokens of their sequence's prefix, such as a prompt; None where there is none.
    """

    tokens: Int[Tensor, "batch length"]
    positions: Int[Tensor, "#batch length"]
    segments: Int[Tensor, "batch length"]
    lengths: Int[Tensor, "batch"]
    prefix: Bool[Tensor, "batch length"] | None = None

    @classmethod
    def pad(cls, rows: Sequence[Sequence[int]]) -> "Sequences":
        """Lay one sequence in each row and fill up to the longest with ``PAD``."""
        longest = max(map(len, rows))
        lengths = torch.tensor([len(row) for row in rows])
        tokens = torch.tensor([list(row) + [PAD] * (longest - len(row)) for row in rows])
        positions = torch.arange(longest)[None]
        return cls(tokens, positions, (positions < lengths[:, None]).long(), lengths)


@runtime_checkable
class Batch(Protocol):
    """What every batch that is learnt from has, whatever the model reads of it."""

    @property
    def labels(self) -> Int[Tensor, "..."]:
        """What the model is to say at each place."""
        ...

    @property
    def counted(self) -> Bool[Tensor, "..."]:
        """True at the places whose label counts."""
        ...

    @property
    def samples(self) -> tuple[int, ...]:
        """Which sample of the data set each row is or begins with, so that a bad one can be named."""
        ...

    @property
    def n_target_tokens(self) -> int:
        """How many labels count."""
        ...

    def to(self, device: torch.device) -> Self:
        """Copy to ``device``."""
        ...


def twice(batch: Any) -> Any:
    """Repeat all rows of a batch, or of its sequences, behind themselves, to be read under two dropouts."""

    def both(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x if len(x) == 1 < n_rows else torch.cat([x, x])  # one row for all stays one
        return twice(x) if isinstance(x, Sequences) else x if x is None else x + x

    n_rows = len(batch.tokens if isinstance(batch, Sequences) else batch.samples)
    return replace(batch, **{field.name: both(getattr(batch, field.name)) for field in fields(batch)})


@dataclass(frozen=True)
class TranslationBatch(_OnDevice):
    """Sentence pairs for teacher forcing.

    Attributes:
        source: source tokens and the end symbol.
        target: the decoder's input, the start symbol and then the target tokens (the labels shifted one place to the right).
        labels: target tokens and the end symbol, ``PAD`` where ``target`` is padding.
        samples: index of each row's pair in the data set, so that a bad one can be named.
    """

    source: Sequences
    target: Sequences
    labels: Int[Tensor, "batch target"]
    samples: tuple[int, ...]

    @property
    def counted(self) -> Bool[Tensor, "batch target"]:
        """True at every token that is no padding."""
        return self.target.segments > 0

    @property
    def n_target_tokens(self) -> int:
        """True target tokens, padding not counted."""
        return int(self.target.lengths.sum())


def translation_batch(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], samples: Sequence[int]) -> TranslationBatch:
    """Make a batch for teacher forcing: the decoder reads the start symbol and the target, and predicts the target and the end symbol."""
    target = Sequences.pad([[SOS, *row] for row in targets])
    labels = Sequences.pad([[*row, EOS] for row in targets]).tokens
    return TranslationBatch(Sequences.pad([[*row, EOS] for row in sources]), target, labels, tuple(samples))


@dataclass(frozen=True)
class LanguageBatch(_OnDevice):
    """Text for teacher forcing: windows of it, or instructions with their answers.

    Attributes:
        target: the text, each document behind a start symbol; a row may hold parts of several documents, one segment each.
            A document may begin with a prefix, which is read only.
        labels: the token behind each one, ``PAD`` where ``target`` is padding.
        samples: where each row begins in the data set, so that a bad one can be named.
    """

    target: Sequences
    labels: Int[Tensor, "batch target"]
    samples: tuple[int, ...]

    @property
    def counted(self) -> Bool[Tensor, "batch target"]:
        """True at every token that is no padding and in no prefix."""
        real = self.target.segments > 0
        return real if self.target.prefix is None else real & ~self.target.prefix

    @property
    def n_target_tokens(self) -> int:
        """True target tokens, padding and prefixes not counted."""
        return int(self.counted.sum())


@dataclass(frozen=True)
class MaskedBatch(_OnDevice):
    """Texts of which some tokens are hidden.

    Attributes:
        source: the text, a mask or another token in place of most of those that are to be named.
        labels: the text as it was.
        counted: True at the tokens that are to be named.
        samples: where each row begins in the data set, so that a bad one can be named.
    """

    source: Sequences
    labels: Int[Tensor, "batch source"]
    counted: Bool[Tensor, "batch source"]
    samples: tuple[int, ...]

    @property
    def n_target_tokens(self) -> int:
        """Tokens that are to be named."""
        return int(self.counted.sum())


class _OneLabelEach:
    """What batches share whose samples have a label each, all of which count."""

    labels: Int[Tensor, "batch"]

    @property
    def counted(self) -> Bool[Tensor, "batch"]:
        """True for every sample."""
        return torch.ones_like(self.labels, dtype=torch.bool)

    @property
    def n_target_tokens(self) -> int:
        """Samples."""
        return len(self.labels)


@dataclass(frozen=True)
class LabelledBatch(_OneLabelEach, _OnDevice):
    """Texts, each with a class.

    Attributes:
        source: the texts, each behind its start symbol.
        labels: number of each text's class.
        samples: index of each row's text in the data set, so that a bad one can be named.
    """

    source: Sequences
    labels: Int[Tensor, "batch"]
    samples: tuple[int, ...]


@dataclass(frozen=True)
class Mixed(_OnDevice):
    """What images are mixed with.

    Attributes:
        labels: number of the class of what each image has a part of.
        share: part of each image that is its own.
    """

    labels: Int[Tensor, "batch"]
    share: Float[Tensor, "batch"]


@dataclass(frozen=True)
class ImageBatch(_OneLabelEach, _OnDevice):
    """Images, each with a class, or with the classes of two that are mixed.

    Attributes:
        pixels: from 0 to 1.
        labels: number of each image's class.
        samples: index of each image in the data set, so that a bad one can be named.
        mixed: what each image is mixed with, where they are.
    """

    pixels: Float[Tensor, "batch channels height width"]
    labels: Int[Tensor, "batch"]
    samples: tuple[int, ...]
    mixed: Mixed | None = None


@dataclass(frozen=True)
class MatchedBatch(_OnDevice):
    """Pairs of texts that belong together; all other pairings of the batch do not.

    Attributes:
        source: left sides, each behind its start symbol.
        target: right sides, likewise.
        samples: index of each row's pair in the data set, so that a bad one can be named.
    """

    source: Sequences
    target: Sequences
    samples: tuple[int, ...]

    @property
    def labels(self) -> Int[Tensor, "batch"]:
        """Which right side belongs to each left side: the one of its row."""
        return torch.arange(len(self.samples), device=self.source.tokens.device)

    @property
    def counted(self) -> Bool[Tensor, "batch"]:
        """True for every pair."""
        return torch.ones_like(self.labels, dtype=torch.bool)

    @property
    def n_target_tokens(self) -> int:
        """Pairs: each has one label."""
        return len(self.samples)


def matched_batch(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], samples: Sequence[int]) -> MatchedBatch:
    """Make a batch of pairs, each side behind its start symbol."""
    left, right = (Sequences.pad([[EOS, *row] for row in side]) for side in (sources, targets))
    return MatchedBatch(left, right, tuple(samples))


def cut_batches(order: Indices, lengths: Indices, batch_tokens: int) -> Iterator[Indices]:
    """Cut an order into runs whose number of samples times the longest is at most ``batch_tokens``.

    Args:
        order: samples, those of like length side by side.
        lengths: tokens of each sample.
        batch_tokens: most tokens of a batch, padding included; a longer sample is a batch of its own.
    """
    start, longest = 0, 0
    for end, length in enumerate(lengths[order].tolist()):
        longest = max(longest, length)
        if end > start and longest * (end + 1 - start) > batch_tokens:
            yield order[start:end]
            start, longest = end, length
    if start < len(order):
        yield order[start:]


def lengths_of(rows: Sequence[Sequence[int]]) -> Indices:
    """Count the tokens of each row."""
    return np.fromiter(map(len, rows), np.int64, len(rows))
