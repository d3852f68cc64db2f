"""Tags names, places, numbers, dates and times in sentences of the phrasebook, using the phrases of the phrasebook's grammar."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TypeVar

from transom.data.synthetic.phrasebook import numbers
from transom.data.synthetic.phrasebook.draw import Item, RandomChoices
from transom.data.synthetic.phrasebook.lexicon import lexicon
from transom.data.synthetic.phrasebook.phrases import clock_time, date, quantity
from transom.tasks.tagging.entities import OUTSIDE
from transom.tasks.tagging.tagged_files import WORD_PATTERNS

ResultT = TypeVar("ResultT")

WORD_PATTERN = WORD_PATTERNS["punctuation"]


class _ExhaustiveChoices(RandomChoices):
    """Enumerator of all sequences of choices that a grammar rule can make, in place of random choices."""

    def __init__(self) -> None:
        self._choices, self._sizes, self._next = list[int](), list[int](), 0

    def chance(self, probability: float) -> bool:
        """Return the truth value that the current sequence of choices selects."""
        return self.randint(0, 1) == 1

    def choice(self, items: Sequence[Item]) -> Item:
        """Return the item that the current sequence of choices selects."""
        return items[self.randint(0, len(items) - 1)]

    def randint(self, low: int, high: int) -> int:
        """Return the integer from ``low`` to ``high``, both included, that the current sequence of choices selects."""
        if self._next == len(self._choices):
            self._choices.append(0)
            self._sizes.append(high - low + 1)
        self._next += 1
        return low + self._choices[self._next - 1]

    def advance(self) -> bool:
        """Move to the next sequence of choices, and return whether there was one."""
        self._next = 0
        while self._choices and self._choices[-1] + 1 == self._sizes[len(self._choices) - 1]:
            self._choices.pop()
        del self._sizes[len(self._choices) :]
        if self._choices:
            self._choices[-1] += 1
        return bool(self._choices)


def enumerate_choices(make: Callable[[RandomChoices], ResultT]) -> Iterator[ResultT]:
    """Yield the result of a grammar rule for every sequence of choices that the rule can make.

    >>> list(enumerate_choices(lambda draw: (draw.chance(0.9), draw.choice("ab"))))
    [(False, 'a'), (False, 'b'), (True, 'a'), (True, 'b')]
    """
    choices = _ExhaustiveChoices()
    yield make(choices)
    while choices.advance():
        yield make(choices)


@cache
def _entities() -> tuple[dict[tuple[str, ...], str], int]:
    """Return the label of every entity of the grammar by the words of the entity, and the maximum number of words of an entity."""
    words = lexicon()
    days = [day for day, _ in words.phrases["weekdays"]]
    phrases_by_label: dict[str, list[str]] = {
        "PERSON": [name.lemma for name in words.names],
        "PLACE": [form for noun in words.nouns["place"] for form in noun.english],
        "NUMBER": [numbers.english(n) for n in enumerate_choices(quantity)],
        "DATE": [
            *(each.english for each in enumerate_choices(lambda draw: date(draw, words))),
            *(phrase for phrases in words.when.values() for phrase, _ in phrases),
            *days,
            *(f"{day}s" for day in days),
        ],
        "TIME": [each.english for each in enumerate_choices(clock_time)],
    }
    table = {tuple(WORD_PATTERN.findall(text)): label for label, texts in phrases_by_label.items() for text in texts}
    return table, max(map(len, table))


def tagged_words(sentence: str) -> tuple[list[str], list[str]]:
    """Return the words of an English sentence of the phrasebook's grammar, and their IOB2 tags.

    The sentence is read from left to right. Among the entities that start at the same word, the longest is tagged.

    >>> list(zip(*tagged_words("Ana sleeps at half past one"), strict=True))[3:]
    [('half', 'B-TIME'), ('past', 'I-TIME'), ('one', 'I-TIME')]
    """
    table, longest = _entities()
    words, tags = WORD_PATTERN.findall(sentence), list[str]()
    while (index := len(tags)) < len(words):
        lengths = range(min(longest, len(words) - index), 0, -1)
        length = next((n for n in lengths if tuple(words[index : index + n]) in table), 0)
        label = table.get(tuple(words[index : index + length]), "")
        tags += [f"B-{label}", *[f"I-{label}"] * (length - 1)] if length else [OUTSIDE]
    return words, tags
