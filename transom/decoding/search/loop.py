"""The decoding loop of all strategies: encode, then step, process logits and select tokens until every source is done."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.data.batch import PaddedSequences
from transom.data.tokenizer.special_tokens import SpecialTokens
from transom.decoding.search.interfaces import (
    NEG_INF,
    CacheT,
    Hypothesis,
    LengthLimits,
    LogitsProcessor,
    MemoryT,
    SearchState,
    SearchUpdate,
    Selector,
    StepModel,
    Strategy,
)  # fmt: skip
from transom.layers.dispatch import operation

DROP_FRACTION = 0.25
"""Finished sources are dropped once they are this fraction of the batch; dropping each one at once would copy the caches too often."""

TOPK_BLOCK_SIZE = 128
"""Number of tokens per block in ``fast_topk``."""

HypothesesPerSource = list[list[Hypothesis]]
"""Hypotheses of each source, best first."""


class SearchRequest(NamedTuple):
    """Input and settings of a search.

    Attributes:
        source: the sources or prompts, one per row.
        strategy: decoding strategy, which selects the tokens.
        limits: length limits of the output of each source; always enforced.
        start: the first token of the decoder input, for all rows or per source.
        end: the end token.
        logits_processors: logits processors, applied in this order, before the length limits.
    """

    source: PaddedSequences
    strategy: Strategy
    limits: LengthLimits
    start: int | Int[Tensor, "sources"]
    end: int
    logits_processors: Sequence[LogitsProcessor] = ()


class SuppressTokens:
    """Suppress tokens that no output contains, such as padding."""

    def __init__(self, tokens: Int[Tensor, "banned"]) -> None:
        """Store the tokens to suppress, on the device of the search."""
        self.tokens = tokens

    def __call__(self, log_p: Float[Tensor, "rows vocab"], state: SearchState) -> Float[Tensor, "rows vocab"]:
        """Set log p of the suppressed tokens to minus infinity in every row."""
        return log_p.index_fill_(1, self.tokens, NEG_INF)


@dataclass(frozen=True)
class MergeEndTokens:
    """Let further tokens end a text: the end token takes over their probability, sum_i p_i^(1/T) at temperature T.

    Args:
        end: the end token.
        others: the further end tokens, on the device of the search.
        temperature: T of sampling; 0 for the most probable token, where the largest p_i counts.
    """

    end: int
    others: Int[Tensor, "others"]
    temperature: float

    def __call__(self, log_p: Float[Tensor, "rows vocab"], state: SearchState) -> Float[Tensor, "rows vocab"]:
        together = torch.cat([log_p[:, self.end, None], log_p[:, self.others]], 1)
        t = self.temperature
        log_p[:, self.end] = together.amax(1) if t == 0 else t * (together / t).logsumexp(1)
        return log_p.index_fill_(1, self.others, NEG_INF)


def merge_end_tokens(special: SpecialTokens, temperature: float, device: torch.device) -> list[LogitsProcessor]:
    """Return the processor of further end tokens, which comes before all others; none if the tokenizer has a single end token."""
    others = special.other_end_token_ids
    return [MergeEndTokens(special.end, torch.tensor(others, device=device), temperature)] if others else []


@dataclass(frozen=True)
class EnforceLengthLimits:
    """Suppress the end token before the minimum length, and all other tokens at the maximum length.

    Args:
        end: the end token.
    """

    end: int

    def __call__(self, log_p: Float[Tensor, "rows vocab"], state: SearchState) -> Float[Tensor, "rows vocab"]:
        limits, length = state.limits, state.length
        if length < limits.smallest_min_length:
            log_p[:, self.end] = NEG_INF
        elif length < limits.largest_min_length:
            early = (length < limits.min_length).repeat_interleave(state.n_beams)
            log_p[:, self.end].masked_fill_(early, NEG_INF)
        if length + 1 >= limits.smallest_max_length:
            last = (length + 1 >= limits.max_length).repeat_interleave(state.n_beams)
            end = log_p[:, self.end].clone()
            log_p.masked_fill_(last[:, None], NEG_INF)
            log_p[:, self.end] = end
        return log_p


def search(model: StepModel[MemoryT, CacheT], request: SearchRequest) -> HypothesesPerSource:
    """Run a search to its end, by the model itself if it can; return the hypotheses of each source, best first."""
    whole = getattr(model, "search", None)
    if whole is not None and (hypotheses := whole(request)) is not None:
        return cast(HypothesesPerSource, hypotheses)
    steps = search_steps(model, request)
    while True:
        try:
            next(steps)
        except StopIteration as over:
            found: HypothesesPerSource = over.value
            return found


@torch.inference_mode()
def search_steps(model: StepModel[MemoryT, CacheT], request: SearchRequest) -> Generator[SearchState, None, HypothesesPerSource]:
    """Run a search step by step.

    Args:
        model: the step model, in evaluation mode.
        request: input and settings of the search.

    Yields:
        The state of the search after each step.

    Returns:
        Hypotheses of each source, best first.
    """
    source, strategy, limits, start, end, logits_processors = request
    n_sources, n_beams, device = len(source.lengths), strategy.n_beams, source.tokens.device
    logits_processors = [*logits_processors, EnforceLengthLimits(end)]
    cache = model.start(model.encode(source), n_beams, limits.largest_max_length)
    selector = strategy.begin(limits)
    first = torch.full((n_sources,), start, device=device) if isinstance(start, int) else start
    state = SearchState(first.repeat_interleave(n_beams)[:, None], torch.arange(n_sources, device=device), limits, n_beams)
    found: HypothesesPerSource = [[] for _ in range(n_sources)]
    log_probs = getattr(model, "log_probs", partial(_log_probs, model))
    while True:
        log_p = log_probs(state.tokens_so_far[:, -1:], cache)
        for processor in logits_processors:
            log_p = processor(log_p, state)
        update = selector.advance(log_p, state)
        state.tokens_so_far = _append_tokens(state.tokens_so_far, update)
        yield state
        done = _finished_sources(update, state)
        rows, n_done = update.parents, int(done.sum())
        if n_done and n_done >= DROP_FRACTION * len(done):
            _store_finished(found, selector, done, state)
            if n_done == len(done):
                return found
            kept = (~done).nonzero()[:, 0]
            kept_rows = (kept[:, None] * n_beams + torch.arange(n_beams, device=device)).flatten()
            rows = kept_rows if rows is None else rows[kept_rows]
            selector.select_sources(kept)
            cache.select_sources(kept)
            state = SearchState(state.tokens_so_far[kept_rows], state.sources[kept], state.limits.select_sources(kept), n_beams)
        if rows is not None:
            cache.reorder(rows)


def log_probabilities(logits: Float[Tensor, "*axes vocab"], in_place: bool = False) -> Float[Tensor, "*axes vocab"]:
    """Return the log-softmax of logits, in at least float32; ``in_place`` overwrites them, which halves the memory traffic."""
    if logits.dtype.itemsize >= torch.float32.itemsize:
        can_overwrite = in_place and torch.is_inference_mode_enabled()  # a search is in this mode, unless its shapes are checked
        return log_softmax_(logits) if can_overwrite else logits.log_softmax(-1)
    return log_softmax_(logits.float())


@operation("log_softmax_")
def log_softmax_(logits: Float[Tensor, "*axes vocab"]) -> Float[Tensor, "*axes vocab"]:
    """Replace logits by their log-softmax, and return them."""
    return torch.log_softmax(logits, -1, out=logits)


@operation("largest")
def largest(values: Float[Tensor, "rows vocab"]) -> tuple[Float[Tensor, "rows"], Int[Tensor, "rows"]]:
    """Return the largest value of each row, and an index at which it stands; NaN is larger than any number."""
    best, indices = fast_topk(values, 1)
    return best[:, 0], indices[:, 0]


def fast_topk(values: Float[Tensor, "rows vocab"], k: int) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
    """Return the ``k`` largest values of each row in decreasing order, and their indices: a faster ``values.topk(k)`` for CPUs.

    The vocabulary is split into blocks. Each of the k largest values lies in one of the k blocks with the largest maxima: otherwise k
    other blocks would each contain a value at least as large. So only these blocks and the remainder after the last whole block are sorted.
    Ties may be broken in a different order than by ``topk``.
    """
    n_blocks = values.shape[1] // TOPK_BLOCK_SIZE
    if n_blocks <= 2 * k:
        return values.topk(k)
    cut = n_blocks * TOPK_BLOCK_SIZE
    blocks = values[:, :cut].view(-1, n_blocks, TOPK_BLOCK_SIZE)
    chosen = blocks.amax(-1).topk(k, sorted=False).indices
    candidates = torch.cat([blocks.gather(1, chosen[..., None].expand(-1, -1, TOPK_BLOCK_SIZE)).flatten(1), values[:, cut:]], 1)
    best, indices = candidates.topk(k)
    in_block = chosen.gather(1, (indices // TOPK_BLOCK_SIZE).clamp_(max=k - 1)) * TOPK_BLOCK_SIZE + indices % TOPK_BLOCK_SIZE
    return best, torch.where(indices < k * TOPK_BLOCK_SIZE, in_block, indices + (cut - k * TOPK_BLOCK_SIZE))


def sequence_log_probs(model: Callable[[Any], Tensor], batch: Any, token_mask: Bool[Tensor, "batch target"]) -> list[float]:
    """Return sum_t log p(y_t | y_<t) over the labels of each row where ``token_mask`` is True, by teacher forcing."""
    return token_log_probs(model, batch).masked_fill(~token_mask, 0.0).sum(1).tolist()


def token_log_probs(model: Callable[[Any], Tensor], batch: Any) -> Float[Tensor, "batch target"]:
    """Return log p(y_t | y_<t) of each label in float64, by teacher forcing."""
    return log_probabilities(model(batch)).gather(-1, batch.labels[..., None])[..., 0].double()


def _log_probs(model: StepModel[MemoryT, CacheT], tokens: Int[Tensor, "rows 1"], cache: CacheT) -> Float[Tensor, "rows vocab"]:
    """Process the next token of each row; return log p of the token after it."""
    return log_probabilities(model.step(tokens, cache)[:, -1], in_place=True)


def _append_tokens(tokens_so_far: Int[Tensor, "rows prefix"], update: SearchUpdate) -> Int[Tensor, "rows longer"]:
    """Append the new token of each row to the tokens of the row that it continues."""
    return torch.cat([tokens_so_far if update.parents is None else tokens_so_far[update.parents], update.tokens[:, None]], 1)


def _finished_sources(update: SearchUpdate, state: SearchState) -> Bool[Tensor, "sources"]:
    """Return which sources are done: those that the strategy declares done, and those at their maximum length, even with NaN logits."""
    if state.length < state.limits.smallest_max_length:
        return update.done
    return update.done | (state.length >= state.limits.max_length)


def _store_finished(found: HypothesesPerSource, selector: Selector, done: Bool[Tensor, "sources"], state: SearchState) -> None:
    """Store the hypotheses of the done sources at their indices in the batch."""
    indices = done.nonzero()[:, 0].tolist()
    for index, hypotheses in zip(state.sources[indices].tolist(), selector.finalize(indices, state), strict=True):
        found[index] = hypotheses
