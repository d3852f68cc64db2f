"""Noun phrases and phrases of time and place, which are sampled in English and Spanish at once."""

from collections.abc import Sequence
from typing import NamedTuple

from transom.data.synthetic.phrasebook import english, numbers, spanish
from transom.data.synthetic.phrasebook.draw import RandomChoices
from transom.data.synthetic.phrasebook.english import Tense
from transom.data.synthetic.phrasebook.lexicon import Adjective, Lexicon, Noun

MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class NounPhrase(NamedTuple):
    """A noun phrase in English and Spanish.

    Attributes:
        english: the English phrase.
        spanish: the Spanish phrase.
        person: index of the grammatical person of the phrase, where 0 to 3 are I, he, we and they.
        feminine: True if the phrase is feminine in Spanish.
        heads: head nouns of the phrase. Empty for a pronoun.
        combinations: word combinations in the phrase, each written as "adjective noun".
        pronoun: True for a pronoun, which Spanish omits if the verb form identifies the person.
    """

    english: str
    spanish: str
    person: int
    feminine: bool
    heads: tuple[Noun, ...]
    combinations: tuple[str, ...] = ()
    pronoun: bool = False

    @property
    def plural(self) -> bool:
        """True if the phrase is plural."""
        return self.person > 1

    @property
    def is_human(self) -> bool:
        """True if the first head noun denotes a person."""
        return bool(self.heads) and self.heads[0].kind == "person"


class Phrase(NamedTuple):
    """A phrase or sentence in English and Spanish, with its word combinations."""

    english: str
    spanish: str
    combinations: tuple[str, ...] = ()


NOTHING = Phrase("", "")


def join_words(*words: str) -> str:
    """Join the non-empty words with spaces."""
    return " ".join(word for word in words if word)


def _modify(draw: RandomChoices, words: Lexicon, noun: Noun, plural: bool, adjective: Adjective | None) -> Phrase:
    """Combine a noun and an optional adjective, which precedes the English noun, follows the Spanish noun and agrees with it."""
    if adjective is None:
        return Phrase(noun.english[plural], noun.spanish[plural])
    degree = words.phrases["degrees"][0] if adjective.degrees and draw.chance(0.1) else ("", "")
    return Phrase(
        join_words(degree[0], adjective.lemma, noun.english[plural]),
        join_words(noun.spanish[plural], degree[1], adjective.forms[2 * plural + noun.feminine]),
        (f"{adjective.lemma} {noun.lemma}",),
    )


def _article(noun: Noun, plural: bool) -> str:
    """Return the Spanish definite article of a noun."""
    if plural:
        return "las" if noun.feminine else "los"
    return "la" if noun.feminine and not noun.takes_el else "el"


def _add_determiner(draw: RandomChoices, words: Lexicon, noun: Noun, use: str, phrase: Phrase) -> tuple[str, str]:
    determiner = draw.choice(words.determiners[use])
    before = determiner.spanish[noun.feminine]
    if noun.takes_el and before in ("la", "una"):
        before = determiner.spanish[0]
    first = english.with_article(phrase.english) if determiner.english == "a" else f"{determiner.english} {phrase.english}"
    return first, f"{before} {phrase.spanish}"


def quantity(draw: RandomChoices) -> int:
    """Sample a number from 2 to 99 or a multiple of 100 up to 900. Numbers up to 20 are the most frequent."""
    low, high = draw.choice(((2, 20), (2, 20), (2, 20), (21, 39), (21, 39), (40, 99)))
    return 100 * draw.randint(1, 9) if draw.chance(0.1) else draw.randint(low, high)


def noun_phrase(
    draw: RandomChoices,
    words: Lexicon,
    nouns: Sequence[Noun],
    *,
    adjective: float = 0.45,
    plural: float = 0.35,
    bare: float = 0.0,
    indefinite: bool = False,
) -> NounPhrase:
    """Sample a noun phrase, such as "the red house", "three dogs" or "my milk", or a person's name.

    Args:
        draw: the random choices.
        words: the lexicon.
        nouns: the nouns to choose from.
        adjective: probability of an adjective.
        plural: probability of the plural, for nouns that are not mass nouns.
        bare: probability of omitting the determiner before a plural or mass noun.
        indefinite: allow only phrases that can follow "there is" or "there are", such as "a dog", "some dogs" and "water".
    """
    noun = draw.choice(nouns)
    if noun.is_name:
        return NounPhrase(noun.lemma, noun.lemma, 1, noun.feminine, (noun,))
    many = not noun.mass and draw.chance(plural)
    chosen = draw.choice(words.adjectives[noun.kind]) if draw.chance(adjective) else None
    phrase = _modify(draw, words, noun, many, chosen)
    if (noun.mass and indefinite) or ((many or noun.mass) and draw.chance(bare)):
        first, second = phrase.english, phrase.spanish
    elif many and draw.chance(0.2):
        n = quantity(draw)
        first, second = f"{numbers.english(n)} {phrase.english}", f"{numbers.spanish(n, noun.feminine)} {phrase.spanish}"
    else:
        use = "mass" if noun.mass else ("several" if many else "one") if indefinite else "plural" if many else "singular"
        first, second = _add_determiner(draw, words, noun, use, phrase)
    return NounPhrase(first, second, 3 if many else 1, noun.feminine, (noun,), phrase.combinations)


def generic_phrase(draw: RandomChoices, words: Lexicon, nouns: Sequence[Noun], *, adjective: float = 0.2) -> NounPhrase:
    """Sample a generic noun phrase, which has an article in Spanish but none in English, such as "lions" and "los leones"."""
    noun = draw.choice(nouns)
    chosen = draw.choice(words.adjectives[noun.kind]) if draw.chance(adjective) else None
    phrase = _modify(draw, words, noun, not noun.mass, chosen)
    with_article = f"{_article(noun, not noun.mass)} {phrase.spanish}"
    return NounPhrase(phrase.english, with_article, 1 if noun.mass else 3, noun.feminine, (noun,), phrase.combinations)


def coordinate(first: NounPhrase, second: NounPhrase) -> NounPhrase:
    """Join two noun phrases by "and". The result is plural, and feminine only if both phrases are feminine."""
    return NounPhrase(
        f"{first.english} and {second.english}",
        spanish.coordinate(first.spanish, second.spanish),
        3,
        first.feminine and second.feminine,
        first.heads + second.heads,
        first.combinations + second.combinations,
    )


def two_names(draw: RandomChoices, words: Lexicon) -> NounPhrase:
    """Sample the names of two different people, such as "Ana and Luis"."""
    first = draw.randint(0, len(words.names) - 1)
    second = (first + draw.randint(1, len(words.names) - 1)) % len(words.names)
    pair = (NounPhrase(noun.lemma, noun.lemma, 1, noun.feminine, (noun,)) for noun in (words.names[first], words.names[second]))
    return coordinate(*pair)


def pronoun(draw: RandomChoices, words: Lexicon) -> NounPhrase:
    """Sample a personal pronoun."""
    first, second, person = draw.choice(words.pronouns)
    return NounPhrase(first, second, person, feminine=second == "ella", heads=(), pronoun=True)


def company_phrase(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a phrase of company, such as "with my sister"."""
    people = noun_phrase(draw, words, words.nouns["person"], adjective=0.2) if draw.chance(0.7) else two_names(draw, words)
    return Phrase(f"with {people.english}", f"con {people.spanish}", people.combinations)


def place_phrase(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a phrase of place, such as "in the park" or "near my house"."""
    where = noun_phrase(draw, words, words.nouns["place"], adjective=0.3, plural=0.0)
    if draw.chance(0.65):
        return Phrase(f"{where.heads[0].place} {where.english}", f"en {where.spanish}", where.combinations)
    before, after = draw.choice(words.phrases["places"])
    return Phrase(f"{before} {where.english}", spanish.contract(after, where.spanish), where.combinations)


def goal_phrase(draw: RandomChoices, words: Lexicon, preposition: str) -> Phrase:
    """Sample a phrase of direction, such as "to the park", with the given English preposition."""
    where = noun_phrase(draw, words, words.nouns["place"], adjective=0.3, plural=0.0)
    return Phrase(f"{preposition} {where.english}", spanish.contract("a", where.spanish), where.combinations)


def clock_time(draw: RandomChoices) -> Phrase:
    """Sample a time of day without a preposition, such as "half past three" and "las tres y media"."""
    hour = draw.randint(1, 12)
    named = ("la " if hour == 1 else "las ") + numbers.spanish(hour, feminine=True)
    before, after, ending = draw.choice(
        (("", " o'clock", ""), ("half past ", "", " y media"), ("a quarter past ", "", " y cuarto"), ("a quarter to ", "", " menos cuarto"))
    )
    return Phrase(f"{before}{numbers.english(hour)}{after}", named + ending)


def date(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a day of the year, such as "the third of May" and "tres de mayo". The Spanish phrase has no article."""
    index = draw.randint(0, 11)
    day = draw.randint(1, MONTH_DAYS[index])
    month = words.phrases["months"][index]
    return Phrase(f"the {numbers.english_ordinal(day)} of {month[0]}", f"{'primero' if day == 1 else numbers.spanish(day)} de {month[1]}")


def time_phrase(draw: RandomChoices, words: Lexicon, tense: Tense) -> Phrase:
    """Sample a phrase of time that suits a tense, such as "yesterday", "on the third of May" or "at three o'clock"."""
    roll = draw.randint(0, 9)
    if roll < 5:
        return Phrase(*draw.choice(words.when[tense]))
    if roll < 7:
        time = clock_time(draw)
        return Phrase(f"at {time.english}", f"a {time.spanish}")
    day = draw.choice(words.phrases["weekdays"])
    if tense == "present":
        return Phrase(f"on {day[0]}s", f"los {day[1]}" + ("s" if day[1][-1] != "s" else ""))
    if roll < 8:
        return Phrase(f"on {day[0]}", f"el {day[1]}")
    on = date(draw, words)
    return Phrase(f"on {on.english}", f"el {on.spanish}")
