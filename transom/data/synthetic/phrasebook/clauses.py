"""Clauses of the phrasebook, which are generated in English and Spanish at once."""

from typing import NamedTuple

from transom.data.synthetic.phrasebook import english, spanish
from transom.data.synthetic.phrasebook.draw import RandomChoices
from transom.data.synthetic.phrasebook.english import Tense
from transom.data.synthetic.phrasebook.lexicon import Lexicon, Verb
from transom.data.synthetic.phrasebook.linked_text import form_of, fuse, join_words, link, possibly, punctuate, words_of
from transom.data.synthetic.phrasebook.phrases import (
    NOTHING,
    NounPhrase,
    Phrase,
    company_phrase,
    coordinate,
    goal_phrase,
    noun_phrase,
    place_phrase,
    pronoun,
    time_phrase,
    two_names,
)
from transom.data.synthetic.phrasebook.spanish import Forms

TENSES: tuple[Tense, ...] = ("present", "past", "future")

NOT = link("not", "no")


class Predicate(NamedTuple):
    """A verb in English and Spanish that agrees with its subject.

    Attributes:
        auxiliary: the English verb that precedes the subject in a question and takes "not".
        base: the English verb form after the subject in a question.
        statement: the English verb form in an affirmative statement.
        finite: the Spanish verb that agrees with the subject.
        infinitive: the Spanish infinitive after a modal verb, or an empty string.
        identifies_person: True if the subject is I or we and the Spanish verb form differs from those of all other persons. Spanish then
            omits the pronoun.
        lemmas: English verbs that form word combinations with the subject.
    """

    auxiliary: str
    base: str
    statement: str
    finite: str
    infinitive: str
    identifies_person: bool
    lemmas: tuple[str, ...]


def _identifies_person(forms: Forms, person: int) -> bool:
    return forms.count(forms[person]) == 1 and person in (0, 2)


def conjugate(verb: Verb, tense: Tense, person: int) -> Predicate:
    """Conjugate a verb in both languages.

    Args:
        verb: the verb.
        tense: the tense.
        person: index of the person, where 0 to 3 are I, he, we and they.
    """
    helper, forms = english.auxiliary(tense, person), verb.forms[tense]
    base, finite = link(verb.lemma, forms[person])
    told = {"does": verb.third, "do": verb.lemma, "did": verb.past, "will": verb.lemma}[helper]
    before = possibly(helper, base)
    statement = join_words(before if helper == "will" else "", form_of(told, base))
    return Predicate(before, base, statement, finite, "", _identifies_person(forms, person), (verb.lemma,))


def conjugate_be(which: str, tense: Tense, person: int) -> Predicate:
    """Conjugate "be" and the corresponding Spanish verb.

    Args:
        which: the Spanish verb, "ser" or "estar".
        tense: the tense.
        person: index of the person, where 0 to 3 are I, he, we and they.
    """
    helper, forms = english.be(tense, person), spanish.BE[which][tense]
    base, finite = link("be" if tense == "future" else helper, forms[person])
    before, after = (possibly(helper, base), base) if tense == "future" else (base, "")
    return Predicate(before, after, join_words(before, after), finite, "", _identifies_person(forms, person), ())


def conjugate_modal(modal: tuple[str, Forms], verb: Verb, person: int) -> Predicate:
    """Conjugate a modal verb in the present tense, followed by another verb.

    Args:
        modal: the English modal verb and its Spanish forms in the present tense.
        verb: the verb after the modal verb.
        person: index of the person, where 0 to 3 are I, he, we and they.
    """
    word, forms = modal
    told = _identifies_person(forms, person)
    first, *to = word.split()
    (wish, finite), (base, infinitive) = link(first, forms[person]), link(verb.lemma, verb.infinitive)
    if not to:
        return Predicate(wish, base, join_words(wish, base), finite, infinitive, told, (verb.lemma,))
    rest = join_words(possibly(*to, base), base)
    inflected = form_of(f"{first}s" if person == 1 else first, wish)
    helper = possibly(english.auxiliary("present", person), wish)
    return Predicate(helper, join_words(wish, rest), join_words(inflected, rest), finite, infinitive, told, (verb.lemma, first))


def _combinations(subject: NounPhrase, predicate: Predicate, rest: Phrase) -> tuple[str, ...]:
    doing = tuple(f"{lemma} {noun.lemma}" for lemma in predicate.lemmas for noun in subject.heads)
    return subject.combinations + doing + rest.combinations


def _subject_and_verb(subject: NounPhrase, predicate: Predicate) -> tuple[str, str]:
    """Return the Spanish subject and verb; a verb that identifies the person also expresses the pronoun."""
    if subject.pronoun and predicate.identifies_person:
        return "", possibly(predicate.finite, subject.english)
    return subject.spanish, predicate.finite


def statement(
    subject: NounPhrase, predicate: Predicate, rest: Phrase, *, negative: bool = False, adverb: tuple[str, str] = ("", "")
) -> Phrase:
    """Return an affirmative or negative statement, such as "the dog does not sleep" and "el perro no duerme".

    Args:
        subject: the subject.
        predicate: the conjugated verb.
        rest: the part of the clause after the verb.
        negative: True for a negative statement.
        adverb: adverb of frequency in English and Spanish, or two empty strings.
    """
    can = predicate.auxiliary == "can"
    denied = fuse("cannot", predicate.auxiliary, NOT[0]) if can else join_words(predicate.auxiliary, NOT[0])
    verb = join_words(denied, predicate.base) if negative else predicate.statement
    if adverb[0]:
        *helper, base = words_of(verb)
        verb = join_words(*helper, adverb[0], base)
    shown, finite = _subject_and_verb(subject, predicate)
    return Phrase(
        join_words(subject.english, verb, rest.english),
        join_words(shown, NOT[1] if negative else "", adverb[1], finite, predicate.infinitive, rest.spanish),
        _combinations(subject, predicate, rest),
    )


def question(
    subject: NounPhrase, predicate: Predicate, rest: Phrase, *, word: tuple[str, str] = ("", ""), rest_first: bool = False
) -> Phrase:
    """Return a question, such as "where does the dog sleep?" and "¿dónde duerme el perro?".

    Args:
        subject: the subject.
        predicate: the conjugated verb.
        rest: the part of the clause after the subject and the verb.
        word: question word in English and Spanish, or two empty strings.
        rest_first: True to put ``rest`` before the subject in Spanish, as is usual for an adjective.
    """
    shown, finite = _subject_and_verb(subject, predicate)
    after = (rest.spanish, shown) if rest_first else (shown, predicate.infinitive, rest.spanish)
    return Phrase(
        punctuate(join_words(word[0], predicate.auxiliary, subject.english, predicate.base, rest.english), after="?"),
        punctuate(join_words(word[1], finite, *after), "¿", "?"),
        _combinations(subject, predicate, rest),
    )


def actor(draw: RandomChoices, words: Lexicon) -> tuple[NounPhrase, tuple[Verb, ...]]:
    """Sample a subject, and return it with the verbs that can follow it."""
    roll = draw.randint(0, 99)
    if roll < 46:
        people = words.names if draw.chance(0.25) else words.nouns["person"]
        return noun_phrase(draw, words, people, adjective=0.25), words.doing["person"]
    if roll < 61:
        return noun_phrase(draw, words, words.nouns["animal"], adjective=0.3), words.doing["animal"]
    if roll < 64:
        return noun_phrase(draw, words, words.nouns["vehicle"], adjective=0.3), words.doing["vehicle"]
    if roll < 94:
        return pronoun(draw, words), words.doing["person"]
    if roll < 98:
        return two_names(draw, words), words.doing["person"]
    pair = (noun_phrase(draw, words, words.nouns["person"], adjective=0.0, plural=0.0) for _ in range(2))
    return coordinate(*pair), words.doing["person"]


def patient(draw: RandomChoices, words: Lexicon, verb: Verb, subject: NounPhrase | None = None) -> Phrase:
    """Sample an object of a verb that differs from the subject of the verb.

    In Spanish, the preposition "a" precedes an object that is a person.
    """
    taken = subject.heads if subject else ()
    thing = noun_phrase(draw, words, verb.objects)
    while thing.heads[0] in taken:
        thing = noun_phrase(draw, words, verb.objects)
    if thing.is_human:
        return Phrase(thing.english, spanish.contract(possibly("a", thing.spanish), thing.spanish), thing.combinations)
    return Phrase(thing.english, thing.spanish, thing.combinations)


def concatenate(*phrases: Phrase) -> Phrase:
    """Concatenate phrases and their word combinations."""
    return Phrase(
        join_words(*(phrase.english for phrase in phrases)),
        join_words(*(phrase.spanish for phrase in phrases)),
        tuple(combination for phrase in phrases for combination in phrase.combinations),
    )


def circumstance(draw: RandomChoices, words: Lexicon, verb: Verb, tense: Tense, *, timed: bool = True, placed: bool = True) -> Phrase:
    """Sample adverbials that suit a verb, of which there may be none.

    Args:
        draw: the random choices.
        words: the lexicon.
        verb: the verb.
        tense: the tense, which an adverbial of time must suit.
        timed: allow an adverbial of time.
        placed: allow an adverbial of goal, place or company.
    """
    parts = []
    if placed:
        if verb.where in ("to", "at") and (verb.lemma == "go" or draw.chance(0.6)):
            parts.append(goal_phrase(draw, words, verb.where))
        elif verb.where == "in" and draw.chance(0.1 if verb.objects else 0.35):
            parts.append(place_phrase(draw, words))
        elif draw.chance(0.1):
            parts.append(company_phrase(draw, words))
    if timed and draw.chance(0.2 if verb.objects else 0.35):
        parts.append(time_phrase(draw, words, tense))
    return concatenate(*parts) if parts else NOTHING
