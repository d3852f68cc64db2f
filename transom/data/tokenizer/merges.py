"""BPE-dropout: a merge loop with random draws that depend on nothing but their key."""

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
    """A word's base tokens, its tokens after every merge, and how many merges lie between."""

    spelled: Tokens
    whole: Tokens
    n_merges: int


class MergeDropout:
    """Segment words by merges each of which may be skipped (Provilkov et al. 2020, algorithm 1).

    Each step offers every pair that can be merged and drops each offer with probability p, anew at each step; the best of what is left
    is merged, and a step without any ends the word. Only the best offers matter, so they are drawn from the best down: the number of
    offers that stand before the next one is dropped is geometric, and one draw covers all of them, often a whole word.
    """

    def __init__(
        self, ranks: Mapping[tuple[int, int], tuple[int, int]], split: Callable[[str], list[str]], spell: Callable[[str], list[int]]
    ) -> None:
        """Take the merges.

        Args:
            ranks: for each pair of tokens that can be merged, its rank (the least is best) and the merged token.
            split: a text's words, which concatenate to the text.
            spell: a word's base tokens.
        """
        self._ranks, self._split, self._spell = ranks, split, spell
        self._words = lru_cache(_CACHED)(self._read)

    def encode(self, text: str, p: float, key: tuple[int, ...]) -> list[int]:
        """Segment a text.

        Args:
            text: what ``split`` takes; it starts with a space.
            p: probability of skipping a merge; with 0 every merge is made.
            key: whole numbers that alone decide the draws, such as seed, epoch, side and sample.

        Returns:
            Its tokens.
        """
        survivals = _survivals(p, key)
        tokens: list[int] = []
        for word in self._text_words(text):
            n = next(survivals)
            tokens += word.whole if n >= word.n_merges else self._merge(word.spelled, n, survivals)[0]
        return tokens

    def _text_words(self, text: str) -> Iterator[Word]:
        """Look the words up by what lies between single spaces: there a word always ends."""
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
        """Merge until no offer is left; ``standing`` offers stand before the first is dropped. Return the tokens and the merges made."""
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
    """Draw, without end, how many offers stand before one is dropped: at least n of them with probability (1 - p)^n."""
    if p == 0:
        while True:
            yield sys.maxsize
    log_stands = math.log1p(-p)
    for block in count():
        digest = blake2b(repr((key, block)).encode()).digest()
        for (bits,) in struct.iter_unpack("<Q", digest):
            yield int(min(math.log((bits + 1) * 2.0**-64) / log_stands, sys.maxsize))
