"""Interfaces of the decoding loop, and the data passed between them: length limits, search state, updates, hypotheses.

A step model computes logits, logits processors suppress tokens, and a strategy's selection chooses the next tokens.

The loop depends on these interfaces only, so a new strategy or constraint is a new class and needs no change to the loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.config.decoding import Decoding
from transom.data.batch import Sequences

NEVER = float("-inf")
"""Log-probability of a suppressed token."""


@dataclass(frozen=True)
class Hypothesis:
    """One finished target sequence.

    Attributes:
        tokens: without start and end tokens.
        log_p: natural logarithm of the probability of the tokens and the end token, given the source.
        score: ``log_p`` divided by the length penalty.
        token_log_p: log p of each token given those before it; empty if the strategy does not record it.
    """

    tokens: tuple[int, ...]
    log_p: float
    score: float
    token_log_p: tuple[float, ...] = field(default=(), compare=False)


def length_penalty(length: int, alpha: float) -> float:
    """Return the length penalty, by which log-probabilities are divided so that longer hypotheses are not at a disadvantage.

    lp(Y) = ((5 + |Y|) / (5 + 1))^alpha (Wu et al. 2016, eq. 14). |Y| includes the end token.

    Args:
        length: |Y|, in tokens.
        alpha: 0 ranks by probability, 1 approximately by the mean log-probability per token.

    >>> length_penalty(1, 0.6), length_penalty(7, 1.0)
    (1.0, 2.0)
    """
    return float(((5 + length) / 6) ** alpha)


@dataclass(frozen=True)
class Limits:
    """Length limits of the output of each source.

    Attributes:
        shortest: minimum number of tokens before the end token.
        longest: maximum number of tokens, end token included.
    """

    shortest: Int[Tensor, "sources"]
    longest: Int[Tensor, "sources"]

    @cached_property
    def all_may_end_from(self) -> int:
        """The largest minimum length of all sources."""
        return int(self.shortest.max())

    @cached_property
    def first_must_end_at(self) -> int:
        """The smallest maximum length of all sources, end token included."""
        return int(self.longest.min())

    @cached_property
    def last_must_end_at(self) -> int:
        """The largest maximum length of all sources, end token included."""
        return int(self.longest.max())

    def keep(self, places: Int[Tensor, "kept"]) -> "Limits":
        """Return the limits of the sources at these indices."""
        return Limits(self.shortest[places], self.longest[places])


def limits_of(source_lengths: Sequence[int], decoding: Decoding, max_seq_len: int, device: torch.device | None = None) -> Limits:
    """Compute the length limits of translations from the lengths of their sources.

    The maximum is min(max_length, max_seq_len, max_length_ratio * source length + 10), but at least ``min_length`` plus the end token.

    Args:
        source_lengths: number of tokens of each source, end token excluded.
        decoding: settings of the search.
        max_seq_len: maximum length of the decoder input, which contains the start token and all tokens but the end token.
        device: device of the limits.
    """
    most = min(decoding.max_length, max_seq_len)
    shortest = min(decoding.min_length, most - 1)
    longest = [max(min(most, int(decoding.max_length_ratio * length) + 10), shortest + 1) for length in source_lengths]
    return Limits(torch.full((len(longest),), shortest, device=device), torch.tensor(longest, device=device))


@runtime_checkable
class Cache(Protocol):
    """State of a step model between steps, such as a KV cache."""

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Replace row i by the previous row ``rows[i]``, as after a beam search step; the number of rows may decrease."""
        ...

    def keep_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Drop all other sources; their rows are dropped by ``reorder``."""
        ...


MemoryT = TypeVar("MemoryT")
CacheT = TypeVar("CacheT", bound=Cache)


@runtime_checkable
class StepModel(Protocol[MemoryT, CacheT]):
    """A model that generates one token per step; beam b of source s is row ``s * n_beams + b``."""

    def encode(self, source: Sequences) -> MemoryT:
        """Encode the sources."""
        ...

    def start(self, memory: MemoryT, n_beams: int, max_length: int) -> CacheT:
        """Allocate a cache for at most ``max_length`` target tokens per row."""
        ...

    def step(self, tokens: Int[Tensor, "rows new"], cache: CacheT) -> Float[Tensor, "rows new vocab"]:
        """Append tokens to each row of the cache; return the logits of the token after each."""
        ...


@dataclass
class Progress:
    """State of a search, read by logits processors and selections.

    Attributes:
        prefixes: start token and tokens so far of each row.
        sources: batch index of each source that is still in the search.
        limits: length limits of these sources.
        n_beams: number of rows per source.
    """

    prefixes: Int[Tensor, "rows prefix"]
    sources: Int[Tensor, "sources"]
    limits: Limits
    n_beams: int

    @property
    def length(self) -> int:
        """Number of tokens so far, start token excluded."""
        return self.prefixes.shape[1] - 1


@runtime_checkable
class Filter(Protocol):
    """Modifies the log-probabilities of the next tokens, as a logits processor of the transformers library does."""

    def __call__(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Float[Tensor, "rows vocab"]:
        """Return log p with suppressed tokens at minus infinity, modified in place or copied; all other values stay unchanged."""
        ...


class Move(NamedTuple):
    """Result of one selection step.

    Attributes:
        tokens: the next token of each row.
        parents: the row that each row continues; None if every row continues itself.
        done: sources whose result can no longer change.
    """

    tokens: Int[Tensor, "rows"]
    parents: Int[Tensor, "rows"] | None
    done: Bool[Tensor, "sources"]


@runtime_checkable
class Selection(Protocol):
    """State of a strategy during a search: chooses the next tokens and stores finished hypotheses."""

    def advance(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Move:
        """Choose the next token of each row."""
        ...

    def harvest(self, places: list[int], progress: Progress) -> list[list[Hypothesis]]:
        """Return the finished hypotheses of the sources at these indices, best first."""
        ...

    def keep(self, places: Int[Tensor, "kept"]) -> None:
        """Drop all sources except those at these indices."""
        ...


@runtime_checkable
class Strategy(Protocol):
    """A decoding strategy, such as greedy search or beam search."""

    @property
    def n_beams(self) -> int:
        """Number of rows per source."""
        ...

    def begin(self, limits: Limits) -> Selection:
        """Start a search with one source per length limit."""
        ...
