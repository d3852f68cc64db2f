"""A model given by a table of conditional probabilities, and simple reference searches over it."""

import itertools
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from transom.data.batch import PaddedSequences
from transom.decoding.search.interfaces import Hypothesis

SOS, EOS = 1, 2
FORBIDDEN = (0, 1)

Prefix = tuple[int, ...]


class Conditional(Protocol):
    """Interface of a model in the reference searches."""

    n_symbols: int

    def log_p(self, source: Prefix, prefix: Prefix) -> list[float]: ...


class Table:
    """Random log p(symbol | prefix, source), a function of (prefix, source) only, independent of the batch."""

    def __init__(self, n_symbols: int, seed: int, sharpness: float = 2.0, dtype: torch.dtype = torch.float64) -> None:
        self.n_symbols, self.seed, self.sharpness, self.dtype = n_symbols, seed, sharpness, dtype
        self.n_steps = 0
        self.rows_read = 0

    def logits(self, source: Prefix, prefix: Prefix) -> Tensor:
        draw = np.random.default_rng([self.seed, *source, 10**6, *prefix]).normal(size=self.n_symbols) * self.sharpness
        return torch.tensor(draw, dtype=self.dtype)

    def log_p(self, source: Prefix, prefix: Prefix) -> list[float]:
        return self.logits(source, prefix).double().log_softmax(-1).tolist()

    def encode(self, source: PaddedSequences) -> list[Prefix]:
        return [tuple(row[:n]) for row, n in zip(source.tokens.tolist(), source.lengths.tolist(), strict=True)]

    def start(self, memory: list[Prefix], n_beams: int, max_length: int) -> "TableCache":
        return TableCache(list(memory), n_beams, max_length)

    def step(self, tokens: Tensor, cache: "TableCache") -> Tensor:
        assert len(tokens) == len(cache.tokens_so_far)
        self.n_steps += 1
        self.rows_read += len(tokens)
        cache.tokens_so_far = [(*prefix, *new) for prefix, new in zip(cache.tokens_so_far, tokens.tolist(), strict=True)]
        assert len(cache.tokens_so_far[0]) <= cache.max_length
        rows = [self.logits(cache.sources[i // cache.n_beams], prefix[1:]) for i, prefix in enumerate(cache.tokens_so_far)]
        return torch.stack(rows)[:, None]


class TableCache:
    def __init__(self, sources: list[Prefix], n_beams: int, max_length: int) -> None:
        self.sources, self.n_beams, self.max_length = sources, n_beams, max_length
        self.tokens_so_far: list[Prefix] = [()] * (len(sources) * n_beams)

    def reorder(self, rows: Tensor) -> None:
        self.tokens_so_far = [self.tokens_so_far[i] for i in rows.tolist()]
        assert len(self.tokens_so_far) == len(self.sources) * self.n_beams

    def select_sources(self, sources: Tensor) -> None:
        self.sources = [self.sources[i] for i in sources.tolist()]


def penalty(length: int, alpha: float) -> float:
    return float(((5.0 + length) ** alpha) / ((5.0 + 1.0) ** alpha))


def finished(tokens: Prefix, log_p: float, alpha: float) -> Hypothesis:
    return Hypothesis(tokens, log_p, log_p / penalty(len(tokens) + 1, alpha))


def every_hypothesis(table: Conditional, source: Prefix, min_length: int, max_length: int, alpha: float) -> list[Hypothesis]:
    """Score every possible target, best first."""
    words = [symbol for symbol in range(table.n_symbols) if symbol not in (*FORBIDDEN, EOS)]

    def all_targets() -> Iterator[Prefix]:
        for length in range(min_length, max_length):
            yield from itertools.product(words, repeat=length)

    found = []
    for target in all_targets():
        total = sum(table.log_p(source, target[:i])[symbol] for i, symbol in enumerate((*target, EOS)))
        found.append(finished(target, total, alpha))
    return sorted(found, key=lambda h: -h.score)


def slow_beam(table: Conditional, source: Prefix, n_beams: int, min_length: int, max_length: int, alpha: float) -> list[Hypothesis]:
    """Run beam search up to the maximum length without early stopping; return all finished hypotheses, best first."""
    live: list[tuple[Prefix, float]] = [((), 0.0)]
    found = []
    for length in range(max_length):
        extensions = []
        for prefix, log_p in live:
            for symbol, more in enumerate(table.log_p(source, prefix)):
                if symbol in FORBIDDEN or (symbol == EOS and length < min_length) or (symbol != EOS and length + 1 == max_length):
                    continue
                extensions.append((log_p + more, prefix, symbol))
        extensions.sort(key=lambda e: -e[0])
        found += [finished(prefix, log_p, alpha) for log_p, prefix, symbol in extensions[:n_beams] if symbol == EOS]
        live = [((*prefix, symbol), log_p) for log_p, prefix, symbol in extensions if symbol != EOS][:n_beams]
    return sorted(found, key=lambda h: -h.score)


def slow_greedy(table: Conditional, source: Prefix, min_length: int, max_length: int, alpha: float) -> Hypothesis:
    prefix: Prefix = ()
    total = 0.0
    while True:
        allowed = {
            symbol: log_p
            for symbol, log_p in enumerate(table.log_p(source, prefix))
            if symbol not in FORBIDDEN
            and not (symbol == EOS and len(prefix) < min_length)
            and (symbol == EOS or len(prefix) + 1 < max_length)
        }
        symbol = max(allowed, key=allowed.__getitem__)
        total += allowed[symbol]
        if symbol == EOS:
            return finished(prefix, total, alpha)
        prefix = (*prefix, symbol)
