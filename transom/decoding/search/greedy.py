"""Greedy search: always take the most probable next token."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transom.data.tokenizer.special import PAD
from transom.decoding.search.loop import top_tokens
from transom.decoding.search.roles import Hypothesis, Limits, Move, Progress, length_penalty


@dataclass(frozen=True)
class Greedy:
    """Take y_t = argmax p(y | y_<t, x) until the end token.

    Args:
        end: the end token.
        length_penalty: alpha of the reported score; it does not affect the choice of tokens.
    """

    end: int
    length_penalty: float = 0.0

    @property
    def n_beams(self) -> int:
        """One row per source."""
        return 1

    def begin(self, limits: Limits) -> "GreedySelection":
        """Start a search."""
        return GreedySelection(self, limits)


class GreedySelection:
    """Log-probabilities of the rows so far, and which rows have ended."""

    def __init__(self, strategy: Greedy, limits: Limits) -> None:
        """Start with log p = 0 everywhere."""
        self._strategy = strategy
        self._log_p = torch.zeros(len(limits.longest), device=limits.longest.device)
        self._done = torch.zeros_like(limits.longest, dtype=torch.bool)

    def advance(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Move:
        """Take the most probable token of each row; finished rows emit padding."""
        best, likeliest = top_tokens(log_p, 1)
        tokens = likeliest[:, 0].masked_fill(self._done, PAD)
        self._log_p = self._log_p + best[:, 0].masked_fill(self._done, 0.0)
        self._done = self._done | (tokens == self._strategy.end)
        return Move(tokens, None, self._done)

    def harvest(self, places: list[int], progress: Progress) -> list[list[Hypothesis]]:
        """Return the single hypothesis of each source."""
        return [[self._hypothesis(*row)] for row in zip(progress.prefixes[places, 1:].tolist(), self._log_p[places].tolist(), strict=True)]

    def _hypothesis(self, tokens: list[int], log_p: float) -> Hypothesis:
        length = tokens.index(self._strategy.end)
        return Hypothesis(tuple(tokens[:length]), log_p, log_p / length_penalty(length + 1, self._strategy.length_penalty))

    def keep(self, places: Int[Tensor, "kept"]) -> None:
        """Drop all sources except those at these indices."""
        self._log_p, self._done = self._log_p[places], self._done[places]
