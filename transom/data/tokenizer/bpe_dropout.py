"""BPE-dropout with random numbers that depend only on a key."""

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
    """A word before and after all merges.

    Attributes:
        base: token ids of the word before any merge.
        merged_tokens: token ids of the word after all merges.
        n_merges: number of merges in between.
    """

    base: Tokens
    merged_tokens: Tokens
    n_merges: int


class MergeDropout:
    """Segmentation of texts with random omission of merges (BPE-dropout, Provilkov et al. 2020, algorithm 1).

    Each step collects the candidates, which are all pairs of neighboring tokens that can be merged, and drops each candidate with
    probability p. The remaining candidate with the lowest rank is merged. If no candidate remains, the word is finished.

    Only the merged candidate matters, so candidates are tested in the order of their ranks until one is kept. The number of candidates kept
    before the next dropped one has a geometric distribution. A single random number therefore covers a run of candidates, often a whole
    word.
    """

    def __init__(
        self,
        ranks: Mapping[tuple[int, int], tuple[int, int]],
        pretokenize: Callable[[str], list[str]],
        base_tokens: Callable[[str], list[int]],
    ) -> None:
        """Store the merges and the functions that split texts.

        Args:
            ranks: rank and merged token of each pair of tokens that can be merged. Pairs with lower ranks are merged first.
            pretokenize: a function that splits a text into words. Joined without separator, the words are the text.
            base_tokens: a function that returns the token ids of a word before any merge.
        """
        self._ranks, self._pretokenize, self._base_tokens = ranks, pretokenize, base_tokens
        self._words = lru_cache(_CACHE_SIZE)(self._segment_words)

    def encode(self, text: str, p: float, key: tuple[int, ...]) -> list[int]:
        """Return the token ids of a text under BPE-dropout.

        Args:
            text: the text. Tokenizers that prepend a space to texts pass it with the space.
            p: probability of skipping a merge. With 0, no merge is skipped.
            key: integers that determine the random numbers, such as seed, epoch, side and sample.
        """
        run_lengths = _kept_run_lengths(p, key)
        tokens: list[int] = []
        for word in self._text_words(text):
            n = next(run_lengths)
            tokens += word.merged_tokens if n >= word.n_merges else self._merge(word.base, n, run_lengths)[0]
        return tokens

    def _text_words(self, text: str) -> Iterator[Word]:
        """Yield the words of a text, taken from a cache.

        If all spaces are single, the text is split at its spaces, because no word crosses a space. Otherwise the whole text is segmented.
        """
        chunks = text.split(" ")
        if "" in chunks[1:]:
            yield from self._words(text)
        else:
            yield from self._words(chunks[0]) if chunks[0] else ()
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
        """Merge the tokens of a word until no candidate is left, and return the token ids and the number of merges.

        Args:
            base: token ids of the word before any merge.
            n_kept: number of candidates to keep before the first one is dropped.
            run_lengths: numbers of candidates to keep before each further one is dropped.
        """
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
    """Yield the numbers of candidates kept before each dropped candidate, endlessly.

    The numbers have a geometric distribution: a number is at least n with probability (1 - p)^n.

    Args:
        p: probability of dropping a candidate.
        key: integers that determine the random numbers.
    """
    if p == 0:
        while True:
            yield sys.maxsize
    log_keep = math.log1p(-p)
    for block in count():
        digest = blake2b(repr((key, block)).encode()).digest()
        for (bits,) in struct.iter_unpack("<Q", digest):
            yield int(min(math.log((bits + 1) * 2.0**-64) / log_keep, sys.maxsize))
