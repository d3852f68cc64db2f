"""Texts that remember which words of the other language their words translate: the word links of the phrasebook."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

Marks = frozenset[tuple[object, bool]]
"""Units of meaning that a word expresses, each with True if the word surely expresses it and False if it possibly does."""

NO_MARKS: Marks = frozenset()


class LinkedText(str):
    """A text whose whitespace-separated words have marks. Two words of a sentence pair that share a unit are linked.

    Only the functions of this module keep the marks; formatting and other methods of ``str`` return plain text. Marks are computed when
    they are asked for, since most sentences are only read.

    Attributes:
        rule: function that returns the marks of each word, given ``parts``.
        parts: arguments of ``rule``.
    """

    __slots__ = ("parts", "rule")
    rule: Callable[..., Sequence[Marks]]
    parts: tuple[Any, ...]

    def __new__(cls, text: str, rule: Callable[..., Sequence[Marks]], *parts: Any) -> Self:
        """Add the rule of the marks to a text."""
        self = super().__new__(cls, text)
        self.rule, self.parts = rule, parts
        return self


class WordLink(NamedTuple):
    """A link between two words that translate each other.

    Attributes:
        source: index of the word in the first sentence.
        target: index of the word in the second sentence.
        sure: True for a word and its translation; False for a possible link, such as those of function words without a counterpart and of
            set phrases (Och and Ney 2003, section 6).
    """

    source: int
    target: int
    sure: bool


def marks_of(text: str) -> Sequence[Marks]:
    """Return the marks of each word; a plain text has none."""
    return text.rule(*text.parts) if isinstance(text, LinkedText) else (NO_MARKS,) * len(text.split())


def link(first: str, second: str, sure: bool = True) -> tuple[LinkedText, LinkedText]:
    """Link a phrase with its translation.

    Phrases of equal length are linked word by word. Otherwise each word is possibly linked with each word of the other phrase.

    >>> word_links(*link("good night", "buenas noches"))
    (WordLink(source=0, target=0, sure=True), WordLink(source=1, target=1, sure=True))
    >>> word_links(*link("near", "cerca de"))
    (WordLink(source=0, target=0, sure=False), WordLink(source=0, target=1, sure=False))
    """
    unit = object()
    return LinkedText(first, _of_unit, first, second, unit, sure), LinkedText(second, _of_unit, second, first, unit, sure)


def _of_unit(text: str, other: str, unit: object, sure: bool) -> list[Marks]:
    n = len(text.split())
    word_by_word = n == len(other.split())
    return [frozenset({((unit, i), sure) if word_by_word else (unit, False)}) for i in range(n)]


def form_of(text: str, word: str) -> LinkedText:
    """Return another form of a word or phrase, with its marks."""
    return LinkedText(text, marks_of, word)


def possibly(text: str, *expressed: str) -> LinkedText:
    """Return a text whose words possibly express the units of other words of the same language or of the other."""
    return LinkedText(text, _with_possible, text, expressed)


def _with_possible(text: str, expressed: Sequence[str]) -> list[Marks]:
    more = frozenset((unit, False) for each in expressed for marks in marks_of(each) for unit, _ in marks)
    return [marks | more for marks in marks_of(text)]


def fuse(text: str, *words: str) -> LinkedText:
    """Return a single word that expresses what several words express, such as "cannot"."""
    return LinkedText(text, _fused, words)


def _fused(words: Sequence[str]) -> list[Marks]:
    return [frozenset(mark for word in words for marks in marks_of(word) for mark in marks)]


def join_words(*texts: str) -> LinkedText:
    """Join the non-empty texts with spaces."""
    return LinkedText(" ".join(filter(None, texts)), _joined, texts)


def _joined(texts: Sequence[str]) -> list[Marks]:
    return [marks for text in texts for marks in marks_of(text)]


def punctuate(text: str, before: str = "", after: str = "") -> LinkedText:
    """Add punctuation to the first and last word of a text."""
    return LinkedText(f"{before}{text}{after}", marks_of, text)


def words_of(text: str) -> list[LinkedText]:
    """Split a text into its words."""
    return [LinkedText(word, _of_word, text, i) for i, word in enumerate(text.split())]


def _of_word(text: str, i: int) -> list[Marks]:
    return [marks_of(text)[i]]


def word_links(source: str, target: str) -> tuple[WordLink, ...]:
    """Return the links between the words of two sentences, in order; a link is sure if both words surely express a common unit."""
    found = list[WordLink]()
    for i, first in enumerate(marks_of(source)):
        for j, second in enumerate(marks_of(target)):
            if {unit for unit, _ in first} & {unit for unit, _ in second}:
                found.append(WordLink(i, j, any(sure for _, sure in first & second)))
    return tuple(found)
