"""Texts that remember which words of the other language their words translate: the word links of the phrasebook."""

from collections.abc import Sequence
from typing import NamedTuple, Self

Marks = frozenset[tuple[object, bool]]
"""Units of meaning that a word expresses, each with True if the word surely expresses it and False if it possibly does."""

NO_MARKS: Marks = frozenset()


class LinkedText(str):
    """A text whose whitespace-separated words have marks. Two words of a sentence pair that share a unit are linked.

    Only the functions of this module keep the marks; formatting and other methods of ``str`` return plain text.

    Attributes:
        marks: marks of each word.
    """

    __slots__ = ("marks",)
    marks: tuple[Marks, ...]

    def __new__(cls, text: str, marks: Sequence[Marks]) -> Self:
        """Mark the words of a text."""
        self = super().__new__(cls, text)
        self.marks = tuple(marks)
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


def marks_of(text: str) -> tuple[Marks, ...]:
    """Return the marks of each word; a plain text has none."""
    return text.marks if isinstance(text, LinkedText) else (NO_MARKS,) * len(text.split())


def link(first: str, second: str, sure: bool = True) -> tuple[LinkedText, LinkedText]:
    """Link a phrase with its translation.

    Phrases of equal length are linked word by word. Otherwise each word is possibly linked with each word of the other phrase.

    >>> [word_links(*link(*pair)) for pair in (("good night", "buenas noches"), ("near", "cerca de"))][1]
    (WordLink(source=0, target=0, sure=False), WordLink(source=0, target=1, sure=False))
    """
    n, m = len(first.split()), len(second.split())
    marks = [frozenset({(object(), sure)}) for _ in range(n)] if n == m else [frozenset({(object(), False)})]
    return (LinkedText(first, marks if n == m else marks * n), LinkedText(second, marks if n == m else marks * m))


def form_of(text: str, word: str) -> LinkedText:
    """Return another form of a word or phrase, with its marks."""
    return LinkedText(text, marks_of(word))


def possibly(text: str, *expressed: str) -> LinkedText:
    """Return a text whose words possibly express the units of other words of the same language or of the other."""
    more = frozenset((unit, False) for each in expressed for marks in marks_of(each) for unit, _ in marks)
    return LinkedText(text, [marks | more for marks in marks_of(text)])


def fuse(text: str, *words: str) -> LinkedText:
    """Return a single word that expresses what several words express, such as "cannot"."""
    return LinkedText(text, [frozenset().union(*(marks for word in words for marks in marks_of(word)))])


def join_words(*texts: str) -> LinkedText:
    """Join the non-empty texts with spaces."""
    kept = [text for text in texts if text]
    return LinkedText(" ".join(kept), [marks for text in kept for marks in marks_of(text)])


def punctuate(text: str, before: str = "", after: str = "") -> LinkedText:
    """Add punctuation to the first and last word of a text."""
    return LinkedText(f"{before}{text}{after}", marks_of(text))


def words_of(text: str) -> list[LinkedText]:
    """Split a text into its words."""
    return [LinkedText(word, [marks]) for word, marks in zip(text.split(), marks_of(text), strict=True)]


def word_links(source: str, target: str) -> tuple[WordLink, ...]:
    """Return the links between the words of two sentences, in order; a link is sure if both words surely express a common unit."""
    found = list[WordLink]()
    for i, first in enumerate(marks_of(source)):
        for j, second in enumerate(marks_of(target)):
            if {unit for unit, _ in first} & {unit for unit, _ in second}:
                found.append(WordLink(i, j, any(sure for _, sure in first & second)))
    return tuple(found)
