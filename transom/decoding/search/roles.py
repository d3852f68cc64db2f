"""The roles of a search, each one small, and what passes between them: limits, where the search stands, moves, hypotheses.

A model takes steps, filters forbid tokens, and a selection chooses the next ones.

The loop joins them and knows nothing else of them, so a new role (sampling, constraints, streaming) is a new class and no
change to the loop.
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
"""log p of what cannot be."""


@dataclass(frozen=True)
class Hypothesis:
    """One finished target sequence.

    Attributes:
        tokens: without the start and end symbols.
        log_p: natural logarithm of the model's probability of the tokens and the end symbol, given the source.
        score: ``log_p`` over the length penalty.
        token_log_p: log p of each token given those before it; empty where the strategy does not record it.
    """

    tokens: tuple[int, ...]
    log_p: float
    score: float
    token_log_p: tuple[float, ...] = field(default=(), compare=False)


def length_penalty(length: int, alpha: float) -> float:
    """Return what a hypothesis' log probability is divided by, so that long ones are not at a disadvantage.

    lp(Y) = ((5 + |Y|) / (5 + 1))^alpha (Wu et al. 2016, eq. 14). |Y| counts the end symbol.

    Args:
        length: |Y|, in tokens.
        alpha: 0 ranks by probability, 1 nearly by the mean log probability of a token.

    >>> length_penalty(1, 0.6), length_penalty(7, 1.0)
    (1.0, 2.0)
    """
    return float(((5 + length) / 6) ** alpha)


@dataclass(frozen=True)
class Limits:
    """Bounds on each source's translation.

    Attributes:
        shortest: fewest tokens before the end symbol.
        longest: most tokens, the end symbol included.
    """

    shortest: Int[Tensor, "sources"]
    longest: Int[Tensor, "sources"]

    @cached_property
    def all_may_end_from(self) -> int:
        """Tokens after which no lower bound is left to mind."""
        return int(self.shortest.max())

    @cached_property
    def first_must_end_at(self) -> int:
        """Tokens, the end symbol included, at which the first upper bound is met."""
        return int(self.longest.min())

    @cached_property
    def last_must_end_at(self) -> int:
        """Tokens, the end symbol included, that no translation exceeds."""
        return int(self.longest.max())

    def keep(self, places: Int[Tensor, "kept"]) -> "Limits":
        """Return the bounds of the sources at these places."""
        return Limits(self.shortest[places], self.longest[places])


def limits_of(source_lengths: Sequence[int], decoding: Decoding, max_seq_len: int, device: torch.device | None = None) -> Limits:
    """Bound the translations of sources of these lengths.

    longest = min(max_length, max_seq_len, max_length_ratio * source length + 10), but always room for ``min_length`` and the end.

    Args:
        source_lengths: tokens, the end symbol not counted.
        decoding: the search's settings.
        max_seq_len: most tokens the decoder can read; it reads the start symbol and all but the end.
        device: where the bounds are needed.
    """
    most = min(decoding.max_length, max_seq_len)
    shortest = min(decoding.min_length, most - 1)
    longest = [max(min(most, int(decoding.max_length_ratio * length) + 10), shortest + 1) for length in source_lengths]
    return Limits(torch.full((len(longest),), shortest, device=device), torch.tensor(longest, device=device))


@runtime_checkable
class Cache(Protocol):
    """What a model remembers between steps."""

    def reorder(self, rows: Int[Tensor, "rows"]) -> None:
        """Let row i continue from old row ``rows[i]``; fewer rows than before drop the rest."""
        ...

    def keep_sources(self, sources: Int[Tensor, "kept"]) -> None:
        """Forget the other sources; their rows leave by ``reorder``."""
        ...


MemoryT = TypeVar("MemoryT")
CacheT = TypeVar("CacheT", bound=Cache)


@runtime_checkable
class StepModel(Protocol[MemoryT, CacheT]):
    """A model that writes a target one token at a time; row ``source * n_beams + beam``."""

    def encode(self, source: Sequences) -> MemoryT:
        """Read the sources."""
        ...

    def start(self, memory: MemoryT, n_beams: int, max_length: int) -> CacheT:
        """Prepare to read at most ``max_length`` target tokens a row."""
        ...

    def step(self, tokens: Int[Tensor, "rows new"], cache: CacheT) -> Float[Tensor, "rows new vocab"]:
        """Read the rows' next tokens; return the logits of what follows each."""
        ...


@dataclass
class Progress:
    """Where a search stands: what filters and selections may look at.

    Attributes:
        prefixes: the start symbol and the tokens so far of each row.
        sources: index in the batch of each source that is still being searched.
        limits: of those sources.
        n_beams: rows a source.
    """

    prefixes: Int[Tensor, "rows prefix"]
    sources: Int[Tensor, "sources"]
    limits: Limits
    n_beams: int

    @property
    def length(self) -> int:
        """Tokens so far, the start symbol not counted."""
        return self.prefixes.shape[1] - 1


@runtime_checkable
class Filter(Protocol):
    """What may not be said next."""

    def __call__(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Float[Tensor, "rows vocab"]:
        """Set forbidden tokens to minus infinity, in place or not; log p of the others stays the model's own."""
        ...


class Move(NamedTuple):
    """A selection's choice at one step.

    Attributes:
        tokens: the next token of each row.
        parents: the row that each row continues, within its source; None where each continues itself.
        done: sources whose answer can no longer change.
    """

    tokens: Int[Tensor, "rows"]
    parents: Int[Tensor, "rows"] | None
    done: Bool[Tensor, "sources"]


@runtime_checkable
class Selection(Protocol):
    """A search under way: it chooses the next tokens and keeps what is finished."""

    def advance(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Move:
        """Choose each row's next token."""
        ...

    def harvest(self, places: list[int], progress: Progress) -> list[list[Hypothesis]]:
        """Return the finished hypotheses, best first, of the sources at these places."""
        ...

    def keep(self, places: Int[Tensor, "kept"]) -> None:
        """Go on with the sources at these places only."""
        ...


@runtime_checkable
class Strategy(Protocol):
    """A way to choose: greedy, beam."""

    @property
    def n_beams(self) -> int:
        """Rows a source."""
        ...

    def begin(self, limits: Limits) -> Selection:
        """Start a search over as many sources as there are limits."""
        ...
