"""Beam search with GNMT's length penalty and an exact stopping rule."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transom.decoding.search.interfaces import NEG_INF, Hypothesis, LengthLimits, SearchState, SearchUpdate, length_penalty
from transom.decoding.search.loop import fast_topk


@dataclass(frozen=True)
class BeamSearch:
    """Keep the ``n_beams`` most probable unfinished hypotheses of each source, and the ``n_best`` finished ones of highest score.

    A step extends every live (unfinished) hypothesis by every token and ranks all extensions of a source by log p. Extensions among the
    first ``n_beams`` that end with the end token are finished, with score log p / lp(length). The first ``n_beams`` that do not end stay
    live.

    **Stopping rule.** A source is done when the worst of its ``n_best`` kept scores is at least max over live h of
    log p(h) / lp(L), with L the maximum length of the source's output. No hypothesis that finishes later can score higher than a kept one:

    1. A hypothesis f of length l <= L that finishes later extends some live h, so log p(f) <= log p(h): each token adds log p <= 0.
    2. lp grows with length and log p(f) <= 0, so score(f) = log p(f) / lp(l) <= log p(f) / lp(L) <= log p(h) / lp(L).

    Both steps also hold in floating point: sums of non-positive numbers, division and rounding are monotonic. Stopping therefore only
    saves time. (The common rule, stopping once ``n_beams`` hypotheses are finished, can miss the best hypothesis.)

    Args:
        end: the end token.
        n_beams: number of live hypotheses per source.
        n_best: number of finished hypotheses kept per source.
        length_penalty: alpha of lp, at least 0.
    """

    end: int
    n_beams: int
    n_best: int = 1
    length_penalty: float = 0.6

    def begin(self, limits: LengthLimits) -> "BeamSelector":
        return BeamSelector(self, limits)


class BeamSelector:
    """Live and finished hypotheses of all sources, in tensors, so that a step takes equally many operations for any number of beams."""

    def __init__(self, strategy: BeamSearch, limits: LengthLimits) -> None:
        """Start with one live hypothesis per source, which is empty, and with no finished hypotheses."""
        n_sources, n_best, device = len(limits.max_length), strategy.n_best, limits.max_length.device
        self._strategy = strategy
        self._penalties = [length_penalty(length, strategy.length_penalty) for length in range(limits.largest_max_length + 1)]
        self._last_penalty = torch.tensor(self._penalties, device=device)[limits.max_length]
        self._first_row = torch.arange(n_sources, device=device)[:, None] * strategy.n_beams
        self._live = torch.full((n_sources, strategy.n_beams), NEG_INF, device=device)
        self._live[:, 0] = 0.0
        self._done = torch.zeros(n_sources, dtype=torch.bool, device=device)
        self._scores = torch.full((n_sources, n_best), NEG_INF, device=device)
        self._log_p = torch.full((n_sources, n_best), NEG_INF, device=device)
        self._lengths = torch.zeros(n_sources, n_best, dtype=torch.long, device=device)
        self._tokens = torch.zeros(n_sources, n_best, limits.largest_max_length, dtype=torch.long, device=device)

    def advance(self, log_p: Float[Tensor, "rows vocab"], state: SearchState) -> SearchUpdate:
        """Extend and rank all live hypotheses, store those that ended, and keep the best of the others live.

        At most one extension of a live hypothesis ends it, so the first ``2 * n_beams`` extensions contain ``n_beams`` unfinished ones.
        All these extensions are among the first ``2 * n_beams`` tokens of their row.
        """
        n_sources, n_beams = self._live.shape
        best, candidates = fast_topk(log_p, min(2 * n_beams, log_p.shape[1]))
        width = best.shape[1]
        totals = (best.view(n_sources, n_beams, width) + self._live[..., None]).flatten(1)  # (sources, beams * width)
        ranked, indices = totals.topk(min(2 * n_beams, totals.shape[1]))
        tokens = candidates.view(n_sources, -1).gather(1, indices)
        parents = indices // width
        ends = tokens == self._strategy.end
        finished = ends[:, :n_beams] & ~self._done[:, None]
        if finished.any():
            self._finish(ranked[:, :n_beams].masked_fill(~finished, NEG_INF), parents[:, :n_beams], state)
        self._live, order = ranked.masked_fill_(ends, NEG_INF).topk(n_beams)
        self._done = self._done | (self._scores[:, -1] >= self._live[:, 0] / self._last_penalty)
        rows = parents.gather(1, order) + self._first_row
        return SearchUpdate(tokens.gather(1, order).flatten(), rows.flatten(), self._done)

    def _finish(self, log_p: Float[Tensor, "sources beams"], parents: Int[Tensor, "sources beams"], state: SearchState) -> None:
        """Keep the best of all finished hypotheses; ``log_p`` is minus infinity for hypotheses that did not end in this step."""
        length = state.length + 1
        tokens_so_far = state.tokens_so_far[parents + self._first_row, 1:]  # (sources, beams, length - 1)
        self._scores, chosen = torch.cat([self._scores, log_p / self._penalties[length]], 1).topk(self._strategy.n_best)
        self._log_p = torch.cat([self._log_p, log_p], 1).gather(1, chosen)
        self._lengths = torch.cat([self._lengths, torch.full_like(parents, length - 1)], 1).gather(1, chosen)
        tokens = torch.cat([self._tokens[..., : length - 1], tokens_so_far], 1)
        self._tokens[..., : length - 1] = tokens.gather(1, chosen[..., None].expand(-1, -1, length - 1))

    def finalize(self, indices: list[int], state: SearchState) -> list[list[Hypothesis]]:
        """Return the kept hypotheses of the sources at these indices, in decreasing order of score."""
        columns = [x[indices].tolist() for x in (self._tokens, self._lengths, self._log_p, self._scores)]
        return [
            [Hypothesis(tuple(tokens[:n]), log_p, score) for tokens, n, log_p, score in zip(*kept, strict=True) if score > NEG_INF]
            for kept in zip(*columns, strict=True)
        ]

    def select_sources(self, indices: Int[Tensor, "kept"]) -> None:
        """Drop all sources except those at these indices."""
        self._first_row = self._first_row[: len(indices)]
        self._last_penalty, self._done, self._live = self._last_penalty[indices], self._done[indices], self._live[indices]
        self._scores, self._log_p = self._scores[indices], self._log_p[indices]
        self._lengths, self._tokens = self._lengths[indices], self._tokens[indices]
