"""Record what a search of one source does at each step: candidates, chosen tokens, and the hypotheses that are kept, finished or dropped.

The recorder wraps a strategy, so it sees the log-probabilities that every strategy and decoder uses, and changes nothing.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from transom.decoding.search.interfaces import Hypothesis, LengthLimits, SearchState, SearchUpdate, Selector, Strategy


class Candidate(NamedTuple):
    """A possible next token.

    Attributes:
        token: token id.
        p: probability of the token after the hypothesis, before temperature and filters of sampling; tokens that the search suppresses,
            such as all but the end token at the maximum length, have none.
        rank: number of tokens with a larger probability.
    """

    token: int
    p: float
    rank: int


class HypothesisStep(NamedTuple):
    """One hypothesis before a step.

    Attributes:
        tokens: its tokens so far, without the start token.
        log_p: natural logarithm of their probability.
        candidates: the most probable next tokens, best first.
    """

    tokens: tuple[int, ...]
    log_p: float
    candidates: tuple[Candidate, ...]


class Extension(NamedTuple):
    """A hypothesis after a step.

    Attributes:
        parent: index of the hypothesis before the step that it extends.
        chosen: its new token.
        log_p: natural logarithm of the probability of all its tokens.
    """

    parent: int
    chosen: Candidate
    log_p: float


@dataclass(frozen=True)
class SearchStep:
    """A step of the search of one source.

    Attributes:
        number: number of the step, from 1.
        hypotheses: hypotheses before the step, best first in beam search.
        kept: hypotheses after the step that are continued.
        finished: hypotheses that ended in this step, with the end token.
        dropped: indices of the hypotheses that neither continue nor end.
        log_probs: log-probability of every next token after each hypothesis; minus infinity for tokens that the search suppresses.
    """

    number: int
    hypotheses: tuple[HypothesisStep, ...]
    kept: tuple[Extension, ...]
    finished: tuple[Extension, ...]
    dropped: tuple[int, ...]
    log_probs: Float[Tensor, "hypotheses vocab"] = field(repr=False, compare=False)


class RecordedSearch(NamedTuple):
    """A search of one source with its steps.

    Attributes:
        answer: what was found.
        steps: the steps of the search.
        source: tokens that the decoder or encoder read: the source with its end token, or the prompt with its start token.
        tokens: tokens that were found, without start and end tokens.
        decoder: weights of the compiled decoder, "fp32", "bf16" or "int8"; None if PyTorch's modules ran.
        text_length: longest length that prompt and text could reach, as in ``DecoderCache``; None for a translation.
    """

    answer: Any
    steps: list[SearchStep]
    source: tuple[int, ...]
    tokens: tuple[int, ...]
    decoder: str | None
    text_length: int | None = None


@dataclass(frozen=True)
class RecordedStrategy:
    """A strategy whose steps are recorded; for a single source.

    Attributes:
        strategy: the strategy that searches.
        end: the end token.
        n_candidates: candidates recorded per hypothesis.
        steps: the recorded steps.
    """

    strategy: Strategy
    end: int
    n_candidates: int = 5
    steps: list[SearchStep] = field(default_factory=list)

    @property
    def n_beams(self) -> int:
        """Number of rows per source."""
        return self.strategy.n_beams

    def begin(self, limits: LengthLimits) -> "RecordedSelector":
        """Start a search of one source."""
        assert len(limits.max_length) == 1, "one source is recorded at a time"
        return RecordedSelector(self, self.strategy.begin(limits))


class RecordedSelector:
    """A selector that records each step and leaves the choice to the selector of the strategy."""

    def __init__(self, recorder: RecordedStrategy, selector: Selector) -> None:
        self._recorder, self._selector = recorder, selector
        self._log_p = [0.0] + [-math.inf] * (recorder.n_beams - 1)  # a beam search starts with one hypothesis

    def advance(self, log_p: Float[Tensor, "rows vocab"], state: SearchState) -> SearchUpdate:
        """Choose the next tokens with the strategy's selector, and record the step."""
        own, before = log_p.detach().double().clone(), list(self._log_p)  # before the selector changes them in place
        update = self._selector.advance(log_p, state)
        self._recorder.steps.append(self._step(own, before, state, update))
        return update

    def _step(self, log_p: Tensor, before: list[float], state: SearchState, update: SearchUpdate) -> SearchStep:
        """Describe a step by the log-probabilities before it and the update after it."""
        end, rows = self._recorder.end, range(len(before))
        live = [row for row in rows if before[row] > -math.inf]
        tokens = state.tokens_so_far[:, 1:].tolist()
        hypotheses = tuple(HypothesisStep(tuple(tokens[row]), before[row], self._candidates(log_p[row])) for row in live)
        parents = list(rows) if update.parents is None else update.parents.tolist()
        chosen = update.tokens.tolist()
        totals = [before[parent] + float(log_p[parent, token]) for parent, token in zip(parents, chosen, strict=True)]
        extensions = [
            Extension(live.index(parent), self._candidate(log_p[parent], token), total)
            for parent, token, total in zip(parents, chosen, totals, strict=True)
            if total > -math.inf
        ]
        kept = tuple(each for each in extensions if each.chosen.token != end)
        ended = tuple(each for each in extensions if each.chosen.token == end)
        finished = self._finished(log_p, before, live) if self._recorder.n_beams > 1 else ended
        self._log_p = [-math.inf if token == end else total for token, total in zip(chosen, totals, strict=True)]
        used = {each.parent for each in (*kept, *finished)}
        dropped = tuple(i for i in range(len(live)) if i not in used)
        return SearchStep(state.length + 1, hypotheses, kept, finished, dropped, log_p[live].float())

    def _finished(self, log_p: Tensor, before: list[float], live: list[int]) -> tuple[Extension, ...]:
        """Return the hypotheses of a beam that end: those whose end token is among the best ``n_beams`` extensions of all."""
        n_beams, end = len(before), self._recorder.end
        best = [before[row] + x for row in live for x in log_p[row].topk(min(n_beams, log_p.shape[1])).values.tolist()]
        last = sorted(best, reverse=True)[:n_beams][-1]
        ends = {row: before[row] + float(log_p[row, end]) for row in live}
        return tuple(
            Extension(live.index(row), self._candidate(log_p[row], end), total)
            for row, total in ends.items()
            if total >= last and total > -math.inf
        )

    def _candidates(self, log_p: Float[Tensor, "vocab"]) -> tuple[Candidate, ...]:
        """Return the most probable next tokens."""
        best = log_p.topk(min(self._recorder.n_candidates, len(log_p)))
        pairs = zip(best.indices.tolist(), best.values.exp().tolist(), strict=True)
        return tuple(Candidate(token, p, rank) for rank, (token, p) in enumerate(pairs) if p > 0)

    def _candidate(self, log_p: Float[Tensor, "vocab"], token: int) -> Candidate:
        """Return a token with its probability and rank."""
        return Candidate(token, float(log_p[token].exp()), int((log_p > log_p[token]).sum()))

    def finalize(self, indices: list[int], state: SearchState) -> list[list[Hypothesis]]:
        """Return the hypotheses of the strategy's selector."""
        return self._selector.finalize(indices, state)

    def select_sources(self, indices: Int[Tensor, "kept"]) -> None:
        """Do nothing: the search of a single source drops no sources."""
