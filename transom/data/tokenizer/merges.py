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

_CACHED = 1 << 18


class Word(NamedTuple):
    """A word's base tokens, its tokens after all merges, and the number of merges."""

    spelled: Tokens
    whole: Tokens
    n_merges: int


class MergeDropout:
    """Segment words with random omission of merges (BPE-dropout, Provilkov et al. 2020, algorithm 1).

    Each step collects all pairs that can be merged and drops each candidate with probability p. The best remaining candidate is merged; a
    step without one ends the word. Because only the best candidate matters, candidates are tested from the best down. The number of
    candidates kept before the next drop is geometric, so one random number covers a run of candidates, often a whole word.
    """

    def __init__(
        self, ranks: Mapping[tuple[int, int], tuple[int, int]], split: Callable[[str], list[str]], spell: Callable[[str], list[int]]
    ) -> None:
        """Store the merges.

        Args:
            ranks: maps each mergeable pair of tokens to its rank (lowest first) and the merged token.
            pretokenize: splits a text into words, which concatenate to the text.
            base_tokens: returns a word's base tokens.
        """
        self._ranks, self._split, self._spell = ranks, split, spell
        self._words = lru_cache(_CACHED)(self._read)

    def encode(self, text: str, p: float, key: tuple[int, ...]) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: text that starts with a space.
            p: probability of skipping a merge; 0 makes every merge.
            key: integers that determine the random numbers, such as seed, epoch, side and sample.
        """
        survivals = _survivals(p, key)
        tokens: list[int] = []
        for word in self._text_words(text):
            n = next(survivals)
            tokens += word.whole if n >= word.n_merges else self._merge(word.spelled, n, survivals)[0]
        return tokens

    def _text_words(self, text: str) -> Iterator[Word]:
        """Yield the cached words between single spaces, at which a word always ends."""
        chunks = text.split(" ")
        if "" in chunks[1:]:
            yield from self._words(text)
        else:
            for chunk in chunks[1:]:
                yield from self._words(" " + chunk)

    def _read(self, text: str) -> tuple[Word, ...]:
        words = []
        for word in self._split(text):
            spelled = tuple(self._spell(word))
            whole, n_merges = self._merge(spelled, sys.maxsize, iter(()))
            words.append(Word(spelled, tuple(whole), n_merges))
        return tuple(words)

    def _merge(self, spelled: Tokens, standing: int, survivals: Iterator[int]) -> tuple[list[int], int]:
        """Merge until no candidate is left, keeping ``standing`` candidates before the first drop; return tokens and number of merges."""
        tokens, n_merges, offered = list(spelled), 0, self._ranks.get
        while True:
            offers = [(offer, place) for place, pair in enumerate(pairwise(tokens)) if (offer := offered(pair)) is not None]
            offers.sort()
            for (_, merged), place in offers:
                if standing:
                    standing -= 1
                    tokens[place : place + 2] = [merged]
                    n_merges += 1
                    break
                standing = next(survivals)
            else:
                return tokens, n_merges


def _survivals(p: float, key: tuple[int, ...]) -> Iterator[int]:
    """Yield geometric run lengths endlessly: the number of candidates kept before a drop, at least n with probability (1 - p)^n."""
    if p == 0:
        while True:
            yield sys.maxsize
    log_stands = math.log1p(-p)
    for block in count():
        digest = blake2b(repr((key, block)).encode()).digest()
        for (bits,) in struct.iter_unpack("<Q", digest):
            yield int(min(math.log((bits + 1) * 2.0**-64) / log_stands, sys.maxsize))
