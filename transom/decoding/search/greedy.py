"""Greedy search: always take the most probable next token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transom.data.tokenizer.special_tokens import PAD
from transom.decoding.search.interfaces import Hypothesis, LengthLimits, SearchState, SearchUpdate, length_penalty
from transom.decoding.search.loop import largest


@dataclass(frozen=True)
class GreedySearch:
    """Take y_t = argmax p(y | y_<t, x) until the end token.

    Args:
        end: the end token.
        length_penalty: alpha of the reported score; it does not affect the choice of tokens.
        padding: token that finished rows emit.
    """

    end: int
    length_penalty: float = 0.0
    padding: int = PAD

    @property
    def n_beams(self) -> int:
        """One row per source."""
        return 1

    def begin(self, limits: LengthLimits) -> "GreedySelector":
        return GreedySelector(self, limits)

    def hypothesis(self, tokens: Sequence[int], log_p: float) -> Hypothesis:
        """Return the hypothesis of these tokens, up to the end token, with this log p."""
        length = tokens.index(self.end)
        return Hypothesis(tuple(tokens[:length]), log_p, log_p / length_penalty(length + 1, self.length_penalty))


class GreedySelector:
    """State of greedy search: log p of each row so far, and whether the row has ended."""

    def __init__(self, strategy: GreedySearch, limits: LengthLimits) -> None:
        """Start all rows with log p = 0."""
        self._strategy = strategy
        self._log_p = torch.zeros(len(limits.max_length), device=limits.max_length.device)
        self._done = torch.zeros_like(limits.max_length, dtype=torch.bool)

    def advance(self, log_p: Float[Tensor, "rows vocab"], state: SearchState) -> SearchUpdate:
        """Take the most probable token of each row; finished rows emit padding."""
        best, candidates = largest(log_p)
        tokens = candidates.masked_fill(self._done, self._strategy.padding)
        self._log_p = self._log_p + best.masked_fill(self._done, 0.0)
        self._done = self._done | (tokens == self._strategy.end)
        return SearchUpdate(tokens, None, self._done)

    def finalize(self, indices: list[int], state: SearchState) -> list[list[Hypothesis]]:
        """Return the single hypothesis of each source."""
        tokens, log_p = state.tokens_so_far[indices, 1:].tolist(), self._log_p[indices].tolist()
        return [[self._strategy.hypothesis(*row)] for row in zip(tokens, log_p, strict=True)]

    def select_sources(self, indices: Int[Tensor, "kept"]) -> None:
        """Drop all sources except those at these indices."""
        self._log_p, self._done = self._log_p[indices], self._done[indices]
