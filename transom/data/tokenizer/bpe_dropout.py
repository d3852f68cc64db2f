"""BPE-dropout: a merge loop whose random numbers depend only on a key."""

import math
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from itertools import count, pairwise
from typing import NamedTuple

Tokens = tuple[int, ...]

_CACHE_SIZE = 1 << 18


class Word(NamedTuple):
    """A word's base tokens, its tokens after all merges, and the number of merges."""

    base: Tokens
    merged_tokens: Tokens
    n_merges: int


class MergeDropout:
    """Segment words with random omission of merges (BPE-dropout, Provilkov et al. 2020, algorithm 1).

    Each step collects all pairs that can be merged and drops each candidate with probability p. The best remaining candidate is merged; a
    step without one ends the word. Because only the best candidate matters, candidates are tested from the best down. The number of
    candidates kept before the next drop is geometric, so one random number covers a run of candidates, often a whole word.
    """

    def __init__(
        self,
        ranks: Mapping[tuple[int, int], tuple[int, int]],
        pretokenize: Callable[[str], list[str]],
        base_tokens: Callable[[str], list[int]],
    ) -> None:
        """Store the merges.

        Args:
            ranks: maps each mergeable pair of tokens to its rank (lowest first) and the merged token.
            pretokenize: splits a text into words, which concatenate to the text.
            base_tokens: returns a word's base tokens.
        """
        self._ranks, self._pretokenize, self._base_tokens = ranks, pretokenize, base_tokens
        self._words = lru_cache(_CACHE_SIZE)(self._segment_words)

    def encode(self, text: str, p: float, key: tuple[int, ...]) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: text that starts with a space.
            p: probability of skipping a merge; 0 makes every merge.
            key: integers that determine the random numbers, such as seed, epoch, side and sample.
        """
        run_lengths = _kept_run_lengths(p, key)
        tokens: list[int] = []
        for word in self._text_words(text):
            n = next(run_lengths)
            tokens += word.merged_tokens if n >= word.n_merges else self._merge(word.base, n, run_lengths)[0]
        return tokens

    def _text_words(self, text: str) -> Iterator[Word]:
        """Yield the cached words between single spaces, at which a word always ends."""
        chunks = text.split(" ")
        if "" in chunks[1:]:
            yield from self._words(text)
        else:
            for chunk in chunks[1:]:
                yield from self._words(" " + chunk)

    def _segment_words(self, text: str) -> tuple[Word, ...]:
        words = []
        for word in self._pretokenize(text):
            base = tuple(self._base_tokens(word))
            merged_tokens, n_merges = self._merge(base, sys.maxsize, iter(()))
            words.append(Word(base, tuple(merged_tokens), n_merges))
        return tuple(words)

    def _merge(self, base: Tokens, n_kept: int, run_lengths: Iterator[int]) -> tuple[list[int], int]:
        """Merge until no candidate is left, keeping ``n_kept`` candidates before the first drop; return tokens and number of merges."""
        tokens, n_merges, candidate_of = list(base), 0, self._ranks.get
        while True:
            candidates = [
                (candidate, place) for place, pair in enumerate(pairwise(tokens)) if (candidate := candidate_of(pair)) is not None
            ]
            candidates.sort()
            for (_, merged), place in candidates:
                if n_kept:
                    n_kept -= 1
                    tokens[place : place + 2] = [merged]
                    n_merges += 1
                    break
                n_kept = next(run_lengths)
            else:
                return tokens, n_merges


def _kept_run_lengths(p: float, key: tuple[int, ...]) -> Iterator[int]:
    """Yield geometric run lengths endlessly: the number of candidates kept before a drop, at least n with probability (1 - p)^n."""
    if p == 0:
        while True:
            yield sys.maxsize
    log_keep = math.log1p(-p)
    for block in count():
        digest = blake2b(repr((key, block)).encode()).digest()
        for (bits,) in struct.iter_unpack("<Q", digest):
            yield int(min(math.log((bits + 1) * 2.0**-64) / log_keep, sys.maxsize))
