"""Interfaces of the decoding loop, and the data passed between them: length limits, search state, updates, hypotheses.

A step model computes logits, logits processors suppress tokens, and a strategy's selector chooses the next tokens.

The loop depends on these interfaces only, so a new strategy or constraint is a new class and needs no change to the loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.config.decoding import BeamSearchConfig
from transom.data.batch import PaddedSequences

NEG_INF = float("-inf")
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
class LengthLimits:
    """Length limits of the output of each source.

    Attributes:
        min_length: minimum number of tokens before the end token.
        max_length: maximum number of tokens, end token included.
    """

    min_length: Int[Tensor, "sources"]
    max_length: Int[Tensor, "sources"]

    @cached_property
    def smallest_min_length(self) -> int:
        """The smallest minimum length of all sources."""
        return int(self.min_length.min())

    @cached_property
    def largest_min_length(self) -> int:
        """The largest minimum length of all sources."""
        return int(self.min_length.max())

    @cached_property
    def smallest_max_length(self) -> int:
        """The smallest maximum length of all sources, end token included."""
        return int(self.max_length.min())

    @cached_property
    def largest_max_length(self) -> int:
        """The largest maximum length of all sources, end token included."""
        return int(self.max_length.max())

    def select_sources(self, indices: Int[Tensor, "kept"]) -> "LengthLimits":
        return LengthLimits(self.min_length[indices], self.max_length[indices])


def build_length_limits(
    source_lengths: Sequence[int], decoding: BeamSearchConfig, max_seq_len: int, device: torch.device | None = None
) -> LengthLimits:
    """Compute the length limits of translations from the lengths of their sources.

    The maximum is min(max_length, max_seq_len, max_length_ratio * source length + 10), but at least ``min_length`` plus the end token.

    Args:
        source_lengths: number of tokens of each source, end token excluded.
        decoding: settings of the search.
        max_seq_len: maximum length of the decoder input, which contains the start token and all tokens but the end token.
        device: device of the limits.
    """
    most = min(decoding.max_length, max_seq_len)
    min_length = min(decoding.min_length, most - 1)
    max_length = [max(min(most, int(decoding.max_length_ratio * length) + 10), min_length + 1) for length in source_lengths]
    return LengthLimits(torch.full((len(max_length),), min_length, device=device), torch.tensor(max_length, device=device))


@runtime_checkable
class SearchCache(Protocol):
    """State of a step model between steps, such as a KV cache."""

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Replace row i by the previous row ``rows[i]``, for example after a step of beam search; the number of rows may decrease."""
        ...

    def select_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Drop all sources that are not in ``sources``; ``reorder`` drops their rows."""
        ...


MemoryT = TypeVar("MemoryT")
CacheT = TypeVar("CacheT", bound=SearchCache)


@runtime_checkable
class StepModel(Protocol[MemoryT, CacheT]):
    """A model that generates one token per step; beam b of source s is row ``s * n_beams + b``.

    A model may also have ``log_probs(tokens, cache)``: it takes one token per row and returns the log-softmax of the logits, (rows, vocab).
    And it may have ``search(request)``: it returns the hypotheses of each source, or None if the model cannot run this search by itself.
    """

    def encode(self, source: PaddedSequences) -> MemoryT:
        """Encode the sources."""
        ...

    def start(self, memory: MemoryT, n_beams: int, max_length: int) -> CacheT:
        """Allocate a cache for at most ``max_length`` target tokens per row."""
        ...

    def step(self, tokens: Int[Tensor, "rows new"], cache: CacheT) -> Float[Tensor, "rows new vocab"]:
        """Append tokens to each row of the cache; return the logits of the token after each of ``tokens``, which the search overwrites."""
        ...


@dataclass
class SearchState:
    """State of a search, read by logits processors and selectors.

    Attributes:
        tokens_so_far: tokens of each row so far, from the start token.
        sources: batch index of each source that is still in the search.
        limits: length limits of these sources.
        n_beams: number of rows per source.
    """

    tokens_so_far: Int[Tensor, "rows prefix"]
    sources: Int[Tensor, "sources"]
    limits: LengthLimits
    n_beams: int

    @property
    def length(self) -> int:
        """Number of tokens so far, start token excluded."""
        return self.tokens_so_far.shape[1] - 1


@runtime_checkable
class LogitsProcessor(Protocol):
    """Modifies the log-probabilities of the next tokens, like a ``LogitsProcessor`` of the transformers library."""

    def __call__(self, log_p: Float[Tensor, "rows vocab"], state: SearchState) -> Float[Tensor, "rows vocab"]:
        """Return log p with suppressed tokens at minus infinity, modified in place or copied; all other values stay unchanged."""
        ...


class SearchUpdate(NamedTuple):
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
class Selector(Protocol):
    """State of a strategy during a search: chooses the next tokens and stores finished hypotheses."""

    def advance(self, log_p: Float[Tensor, "rows vocab"], state: SearchState) -> SearchUpdate:
        """Choose the next token of each row."""
        ...

    def finalize(self, indices: list[int], state: SearchState) -> list[list[Hypothesis]]:
        """Return the finished hypotheses of the sources at these indices, best first."""
        ...

    def select_sources(self, indices: Int[Tensor, "kept"]) -> None:
        """Drop all sources except those at these indices."""
        ...


@runtime_checkable
class Strategy(Protocol):
    """A decoding strategy, such as greedy search or beam search."""

    @property
    def n_beams(self) -> int:
        """Number of rows per source."""
        ...

    def begin(self, limits: LengthLimits) -> Selector:
        """Start a search over as many sources as ``limits`` has."""
        ...
