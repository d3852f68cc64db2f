"""The decoding loop of all strategies: encode, then step, process logits and select tokens until every source is done."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transom.data.batch import Sequences
from transom.decoding.search.roles import (
    NEVER,
    CacheT,
    Filter,
    Hypothesis,
    Limits,
    MemoryT,
    Move,
    Progress,
    Selection,
    StepModel,
    Strategy,
)  # fmt: skip

DROP_SHARE = 0.25
"""Finished sources leave the batch once they make up this fraction of it; dropping each at once would copy the caches too often."""

TOP_BLOCK = 128
"""Number of tokens per block in ``top_tokens``."""

Found = list[list[Hypothesis]]
"""Hypotheses of each source, best first."""


class Search(NamedTuple):
    """Input and settings of a search.

    Attributes:
        source: one sequence per row.
        strategy: selects the tokens.
        limits: length limits of the output of each source; always enforced.
        start: the first token of the decoder input, for all rows or per source.
        end: the end token.
        filters: logits processors, applied in this order, before the length limits.
    """

    source: Sequences
    strategy: Strategy
    limits: Limits
    start: int | Int[Tensor, "sources"]
    end: int
    filters: Sequence[Filter] = ()


class Forbid:
    """Suppress tokens that no output contains, such as padding."""

    def __init__(self, tokens: Int[Tensor, "banned"]) -> None:
        """Store the tokens to suppress, on the device of the search."""
        self.tokens = tokens

    def __call__(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Float[Tensor, "rows vocab"]:
        """Set log p of the tokens to minus infinity in every row."""
        return log_p.index_fill_(1, self.tokens, NEVER)


@dataclass(frozen=True)
class KeepLimits:
    """Suppress the end token before the minimum length, and all other tokens at the maximum length.

    Args:
        end: the end token.
    """

    end: int

    def __call__(self, log_p: Float[Tensor, "rows vocab"], progress: Progress) -> Float[Tensor, "rows vocab"]:
        """Enforce the limits of each source on its rows."""
        limits, length = progress.limits, progress.length
        if length < limits.all_may_end_from:
            early = (length < limits.shortest).repeat_interleave(progress.n_beams)
            log_p[:, self.end].masked_fill_(early, NEVER)
        if length + 1 >= limits.first_must_end_at:
            last = (length + 1 >= limits.longest).repeat_interleave(progress.n_beams)
            end = log_p[:, self.end].clone()
            log_p.masked_fill_(last[:, None], NEVER)
            log_p[:, self.end] = end
        return log_p


def search(model: StepModel[MemoryT, CacheT], asked: Search) -> Found:
    """Run a search to its end; see ``search_steps``."""
    steps = search_steps(model, asked)
    while True:
        try:
            next(steps)
        except StopIteration as over:
            found: Found = over.value
            return found


@torch.inference_mode()
def search_steps(model: StepModel[MemoryT, CacheT], asked: Search) -> Generator[Progress, None, Found]:
    """Run a search step by step.

    Args:
        model: the step model, in evaluation mode.
        asked: input and settings of the search.

    Yields:
        The state of the search after each step.

    Returns:
        Hypotheses of each source, best first.
    """
    source, strategy, limits, start, end, filters = asked
    n_sources, n_beams, device = len(source.lengths), strategy.n_beams, source.tokens.device
    filters = [*filters, KeepLimits(end)]
    cache = model.start(model.encode(source), n_beams, limits.last_must_end_at)
    selection = strategy.begin(limits)
    first = torch.full((n_sources,), start, device=device) if isinstance(start, int) else start
    progress = Progress(first.repeat_interleave(n_beams)[:, None], torch.arange(n_sources, device=device), limits, n_beams)
    found: Found = [[] for _ in range(n_sources)]
    while True:
        log_p = log_probabilities(model.step(progress.prefixes[:, -1:], cache)[:, -1])
        for forbid in filters:
            log_p = forbid(log_p, progress)
        move = selection.advance(log_p, progress)
        progress.prefixes = _extended(progress.prefixes, move)
        yield progress
        done = _done(move, progress)
        rows, n_done = move.parents, int(done.sum())
        if n_done and n_done >= DROP_SHARE * len(done):
            _collect(found, selection, done, progress)
            if n_done == len(done):
                return found
            kept = (~done).nonzero()[:, 0]
            kept_rows = (kept[:, None] * n_beams + torch.arange(n_beams, device=device)).flatten()
            rows = kept_rows if rows is None else rows[kept_rows]
            selection.keep(kept)
            cache.keep_sources(kept)
            progress = Progress(progress.prefixes[kept_rows], progress.sources[kept], progress.limits.keep(kept), n_beams)
        if rows is not None:
            cache.reorder(rows)


def log_probabilities(logits: Float[Tensor, "*axes vocab"]) -> Float[Tensor, "*axes vocab"]:
    """Return the log-softmax of logits, in at least float32."""
    if logits.dtype.itemsize >= torch.float32.itemsize:
        return logits.log_softmax(-1)
    wide = logits.float()
    return torch.log_softmax(wide, -1, out=wide)  # in place: halves the memory traffic


def top_tokens(values: Float[Tensor, "rows vocab"], k: int) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
    """Return the ``k`` largest values of each row in decreasing order, and their indices: a faster ``values.topk(k)`` for CPUs.

    The vocabulary is split into blocks. Each of the k largest values lies in one of the k blocks with the largest maxima: otherwise k
    blocks would each contain a value at least as large. So only these blocks and the remainder after the last whole block are sorted.
    Ties may be broken in a different order than by ``topk``.
    """
    n_blocks = values.shape[1] // TOP_BLOCK
    if n_blocks <= 2 * k:
        return values.topk(k)
    cut = n_blocks * TOP_BLOCK
    blocks = values[:, :cut].view(-1, n_blocks, TOP_BLOCK)
    chosen = blocks.amax(-1).topk(k, sorted=False).indices
    near = torch.cat([blocks.gather(1, chosen[..., None].expand(-1, -1, TOP_BLOCK)).flatten(1), values[:, cut:]], 1)
    best, places = near.topk(k)
    in_block = chosen.gather(1, (places // TOP_BLOCK).clamp_(max=k - 1)) * TOP_BLOCK + places % TOP_BLOCK
    return best, torch.where(places < k * TOP_BLOCK, in_block, places + (cut - k * TOP_BLOCK))


def summed_log_p(model: Callable[[Any], Tensor], batch: Any, counts: Bool[Tensor, "batch target"]) -> list[float]:
    """Return sum_t log p(y_t | y_<t) over the labels of each row where ``counts`` is True, by teacher forcing."""
    log_p = log_probabilities(model(batch)).gather(-1, batch.labels[..., None])[..., 0]  # (batch, target)
    return log_p.double().masked_fill(~counts, 0.0).sum(1).tolist()


def _extended(prefixes: Int[Tensor, "rows prefix"], move: Move) -> Int[Tensor, "rows longer"]:
    """Append the new token of each row to the tokens of its parent."""
    return torch.cat([prefixes if move.parents is None else prefixes[move.parents], move.tokens[:, None]], 1)


def _done(move: Move, progress: Progress) -> Bool[Tensor, "sources"]:
    """Return which sources are done: according to the selection, or at their maximum length even if the logits are NaN."""
    if progress.length < progress.limits.first_must_end_at:
        return move.done
    return move.done | (progress.length >= progress.limits.longest)


def _collect(found: Found, selection: Selection, done: Bool[Tensor, "sources"], progress: Progress) -> None:
    """Store the hypotheses of the done sources at their indices in the batch."""
    places = done.nonzero()[:, 0].tolist()
    for index, hypotheses in zip(progress.sources[places].tolist(), selection.harvest(places, progress), strict=True):
        found[index] = hypotheses
