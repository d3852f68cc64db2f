"""Noun phrases and phrases of time and place, which are sampled in English and Spanish at once."""

from collections.abc import Sequence
from typing import NamedTuple

from transom.data.synthetic.phrasebook import english, numbers, spanish
from transom.data.synthetic.phrasebook.draw import RandomChoices
from transom.data.synthetic.phrasebook.english import Tense
from transom.data.synthetic.phrasebook.lexicon import Adjective, Lexicon, Noun
from transom.data.synthetic.phrasebook.linked_text import join_words, link, possibly, words_of

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
    """A phrase or sentence in English and Spanish, with its word combinations.

    The texts of phrases that the grammar samples are ``LinkedText``: ``word_links(english, spanish)`` returns the links of their words.
    """

    english: str
    spanish: str
    combinations: tuple[str, ...] = ()


NOTHING = Phrase("", "")


def _modify(draw: RandomChoices, words: Lexicon, noun: Noun, plural: bool, adjective: Adjective | None) -> Phrase:
    """Combine a noun and an optional adjective, which precedes the English noun, follows the Spanish noun and agrees with it."""
    thing = link(noun.english[plural], noun.spanish[plural])
    if adjective is None:
        return Phrase(*thing)
    degree = link(*(words.phrases["degrees"][0] if adjective.degrees and draw.chance(0.1) else ("", "")))
    quality = link(adjective.lemma, adjective.forms[2 * plural + noun.feminine])
    return Phrase(
        join_words(degree[0], quality[0], thing[0]),
        join_words(thing[1], degree[1], quality[1]),
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
    article = determiner.english if determiner.english != "a" else english.with_article(phrase.english).partition(" ")[0]
    first, second = link(article, before)
    return join_words(first, phrase.english), join_words(second, phrase.spanish)


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
        return NounPhrase(*link(noun.lemma, noun.lemma), 1, noun.feminine, (noun,))
    many = not noun.mass and draw.chance(plural)
    chosen = draw.choice(words.adjectives[noun.kind]) if draw.chance(adjective) else None
    phrase = _modify(draw, words, noun, many, chosen)
    if (noun.mass and indefinite) or ((many or noun.mass) and draw.chance(bare)):
        first, second = phrase.english, phrase.spanish
    elif many and draw.chance(0.2):
        n = quantity(draw)
        number = link(numbers.english(n), numbers.spanish(n, noun.feminine))
        first, second = join_words(number[0], phrase.english), join_words(number[1], phrase.spanish)
    else:
        use = "mass" if noun.mass else ("several" if many else "one") if indefinite else "plural" if many else "singular"
        first, second = _add_determiner(draw, words, noun, use, phrase)
    return NounPhrase(first, second, 3 if many else 1, noun.feminine, (noun,), phrase.combinations)


def generic_phrase(draw: RandomChoices, words: Lexicon, nouns: Sequence[Noun], *, adjective: float = 0.2) -> NounPhrase:
    """Sample a generic noun phrase, which has an article in Spanish but none in English, such as "lions" and "los leones"."""
    noun = draw.choice(nouns)
    chosen = draw.choice(words.adjectives[noun.kind]) if draw.chance(adjective) else None
    phrase = _modify(draw, words, noun, not noun.mass, chosen)
    with_article = join_words(possibly(_article(noun, not noun.mass), phrase.spanish), phrase.spanish)
    return NounPhrase(phrase.english, with_article, 1 if noun.mass else 3, noun.feminine, (noun,), phrase.combinations)


def coordinate(first: NounPhrase, second: NounPhrase) -> NounPhrase:
    """Join two noun phrases by "and". The result is plural, and feminine only if both phrases are feminine."""
    both = link("and", spanish.conjunction(second.spanish))
    return NounPhrase(
        join_words(first.english, both[0], second.english),
        join_words(first.spanish, both[1], second.spanish),
        3,
        first.feminine and second.feminine,
        first.heads + second.heads,
        first.combinations + second.combinations,
    )


def two_names(draw: RandomChoices, words: Lexicon) -> NounPhrase:
    """Sample the names of two different people, such as "Ana and Luis"."""
    first = draw.randint(0, len(words.names) - 1)
    second = (first + draw.randint(1, len(words.names) - 1)) % len(words.names)
    pair = (NounPhrase(*link(noun.lemma, noun.lemma), 1, noun.feminine, (noun,)) for noun in (words.names[first], words.names[second]))
    return coordinate(*pair)


def pronoun(draw: RandomChoices, words: Lexicon) -> NounPhrase:
    """Sample a personal pronoun."""
    first, second, person = draw.choice(words.pronouns)
    return NounPhrase(*link(first, second), person, feminine=second == "ella", heads=(), pronoun=True)


def company_phrase(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a phrase of company, such as "with my sister"."""
    people = noun_phrase(draw, words, words.nouns["person"], adjective=0.2) if draw.chance(0.7) else two_names(draw, words)
    first, second = link("with", "con")
    return Phrase(join_words(first, people.english), join_words(second, people.spanish), people.combinations)


def place_phrase(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a phrase of place, such as "in the park" or "near my house"."""
    where = noun_phrase(draw, words, words.nouns["place"], adjective=0.3, plural=0.0)
    before, after = link(*((where.heads[0].place, "en") if draw.chance(0.65) else draw.choice(words.phrases["places"])))
    return Phrase(join_words(before, where.english), spanish.contract(after, where.spanish), where.combinations)


def goal_phrase(draw: RandomChoices, words: Lexicon, preposition: str) -> Phrase:
    """Sample a phrase of direction, such as "to the park", with the given English preposition."""
    where = noun_phrase(draw, words, words.nouns["place"], adjective=0.3, plural=0.0)
    before, after = link(preposition, "a")
    return Phrase(join_words(before, where.english), spanish.contract(after, where.spanish), where.combinations)


def clock_time(draw: RandomChoices) -> Phrase:
    """Sample a time of day without a preposition, such as "half past three" and "las tres y media"."""
    hour = draw.randint(1, 12)
    first, second = link(numbers.english(hour), numbers.spanish(hour, feminine=True))
    named = join_words(possibly("la" if hour == 1 else "las", second), second)
    fraction, relation = draw.choice(
        (
            (("", ""), ("", "")),
            (("half", "media"), ("past", "y")),
            (("a quarter", "cuarto"), ("past", "y")),
            (("a quarter", "cuarto"), ("to", "menos")),
        )
    )
    if not relation[0]:
        return Phrase(join_words(first, possibly("o'clock", first)), named)
    minutes, place = link(*fraction), link(*relation)
    return Phrase(join_words(minutes[0], place[0], first), join_words(named, place[1], minutes[1]))


def date(draw: RandomChoices, words: Lexicon, article: str = "") -> Phrase:
    """Sample a day of the year, such as "the third of May" and "tres de mayo"; ``article`` precedes the Spanish phrase."""
    index = draw.randint(0, 11)
    day = draw.randint(1, MONTH_DAYS[index])
    number = link(numbers.english_ordinal(day), "primero" if day == 1 else numbers.spanish(day))
    the = link("the", article) if article else ("the", "")
    parts = (the, number, link("of", "de"), link(*words.phrases["months"][index]))
    return Phrase(join_words(*(first for first, _ in parts)), join_words(*(second for _, second in parts)))


def time_phrase(draw: RandomChoices, words: Lexicon, tense: Tense) -> Phrase:
    """Sample a phrase of time that suits a tense, such as "yesterday", "on the third of May" or "at three o'clock"."""
    roll = draw.randint(0, 9)
    if roll < 5:
        return Phrase(*link(*draw.choice(words.when[tense])))
    if roll < 7:
        time, (at, a) = clock_time(draw), link("at", "a")
        return Phrase(join_words(at, time.english), join_words(a, time.spanish))
    day = draw.choice(words.phrases["weekdays"])
    if tense != "present" and roll >= 8:
        on = date(draw, words, "el")
        return Phrase(join_words(possibly("on", words_of(on.spanish)[0]), on.english), on.spanish)
    if tense == "present":
        day = (f"{day[0]}s", day[1] + ("s" if day[1][-1] != "s" else ""))
    (first, second), (on_day, article) = link(*day), link("on", "los" if tense == "present" else "el", sure=False)
    return Phrase(join_words(on_day, first), join_words(article, second))
