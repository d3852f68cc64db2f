"""Sentence types of the phrasebook and their weights."""

from collections.abc import Callable

from transom.data.synthetic.phrasebook import english, numbers, spanish
from transom.data.synthetic.phrasebook.clauses import (
    NOT,
    TENSES,
    actor,
    circumstance,
    concatenate,
    conjugate,
    conjugate_be,
    conjugate_modal,
    patient,
    question,
    statement,
)
from transom.data.synthetic.phrasebook.draw import RandomChoices
from transom.data.synthetic.phrasebook.english import Tense
from transom.data.synthetic.phrasebook.lexicon import Lexicon
from transom.data.synthetic.phrasebook.linked_text import form_of, join_words, link, possibly, punctuate
from transom.data.synthetic.phrasebook.phrases import (
    NOTHING,
    NounPhrase,
    Phrase,
    clock_time,
    coordinate,
    date,
    generic_phrase,
    noun_phrase,
    place_phrase,
    pronoun,
    quantity,
    time_phrase,
    two_names,
)

Frame = Callable[[RandomChoices, Lexicon], Phrase]

WHERE, WHEN, WHY = link("where", "dónde"), link("when", "cuándo"), link("why", "por qué")
_THINGS = ("food", "food", "drink", "clothing", "text", "opening", "vehicle", "thing")
_DESCRIBED = ("person", "person", "animal", "place", "event", *_THINGS)


def _anything(draw: RandomChoices, words: Lexicon, kinds: tuple[str, ...], adjective: float = 0.45, plural: float = 0.35) -> NounPhrase:
    return noun_phrase(draw, words, words.nouns[draw.choice(kinds)], adjective=adjective, plural=plural)


def action(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a statement or question about an action, such as "my sister bought two red apples yesterday"."""
    subject, verbs = actor(draw, words)
    verb = draw.choice(verbs)
    tense = draw.choice(TENSES)
    predicate = conjugate(verb, tense, subject.person)
    target = patient(draw, words, verb, subject) if verb.objects else NOTHING
    rest = concatenate(target, circumstance(draw, words, verb, tense))
    roll = draw.randint(0, 99)
    if roll < 15:
        return question(subject, predicate, rest)
    if roll < 30:
        return statement(subject, predicate, rest, negative=True)
    if roll < 40:
        return statement(subject, predicate, concatenate(target), adverb=link(*draw.choice(words.phrases["frequencies"])))
    return statement(subject, predicate, rest)


def ability(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a sentence about ability, obligation or wish, such as "the dog cannot swim"."""
    subject, verbs = actor(draw, words)
    verb = draw.choice(verbs)
    while verb.state:
        verb = draw.choice(verbs)
    predicate = conjugate_modal(draw.choice(words.modals), verb, subject.person)
    target = patient(draw, words, verb, subject) if verb.objects else NOTHING
    rest = concatenate(target, circumstance(draw, words, verb, "present", timed=False))
    roll = draw.randint(0, 99)
    if roll < 20:
        return question(subject, predicate, rest)
    return statement(subject, predicate, rest, negative=roll < 40)


def _plain(draw: RandomChoices, words: Lexicon, kinds: tuple[str, ...], adjective: float = 0.15) -> NounPhrase:
    """Sample a noun phrase that seldom has an adjective, or a person's name."""
    kind = draw.choice(kinds)
    nouns = words.names if kind == "person" and draw.chance(0.4) else words.nouns[kind]
    return noun_phrase(draw, words, nouns, adjective=adjective)


def description(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a description, such as "the water was very cold" or "is she tired?"."""
    roll = draw.randint(0, 99)
    if roll < 8:
        first, second = draw.choice((("he", "él"), ("she", "ella")))
        subject = NounPhrase(*link(first, second), 1, first == "she", (), pronoun=True)
    elif roll < 18:
        subject = two_names(draw, words)
    elif roll < 26:
        subject = generic_phrase(draw, words, words.nouns[draw.choice(_DESCRIBED)], adjective=0.0)
    else:
        subject = _plain(draw, words, _DESCRIBED, adjective=0.0)
    adjective = draw.choice(words.adjectives[subject.heads[0].kind if subject.heads else "person"])
    degree = link(*(draw.choice(words.phrases["degrees"]) if adjective.degrees and draw.chance(0.3) else ("", "")))
    quality = link(adjective.lemma, adjective.forms[2 * subject.plural + subject.feminine])
    rest = Phrase(
        join_words(degree[0], quality[0]),
        join_words(degree[1], quality[1]),
        tuple(f"{adjective.lemma} {noun.lemma}" for noun in subject.heads),
    )
    predicate = conjugate_be(adjective.be, draw.choice(TENSES), subject.person)
    if draw.chance(0.2):
        return question(subject, predicate, rest, rest_first=True)
    return statement(subject, predicate, rest, negative=draw.chance(0.2))


def location(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a statement or question about a location, such as "the keys are in the old church" or "where is my hat?"."""
    subject = pronoun(draw, words) if draw.chance(0.15) else _plain(draw, words, ("person", "animal", "text", "clothing", "thing"))
    predicate = conjugate_be("estar", draw.choice(TENSES), subject.person)
    if draw.chance(0.25):
        return question(subject, predicate, NOTHING, word=WHERE)
    where = place_phrase(draw, words)
    if draw.chance(0.2):
        return question(subject, predicate, where)
    return statement(subject, predicate, where, negative=draw.chance(0.2))


_HAY: dict[Tense, str] = {"present": "hay", "past": "había", "future": "habrá"}


def existence(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a statement or question about existence, such as "there are no eggs" or "is there milk?"."""
    tense = draw.choice(TENSES)
    nouns = words.nouns[draw.choice(_DESCRIBED)]
    roll = draw.randint(0, 9)
    thing = noun_phrase(draw, words, nouns, plural=1.0, bare=1.0) if roll < 2 else noun_phrase(draw, words, nouns, indefinite=True)
    helper = english.be(tense, thing.person)
    be, hay = link("be" if tense == "future" else helper, _HAY[tense])
    verb, base = (possibly(helper, be), be) if tense == "future" else (be, "")
    there, no = possibly("there", be), link("no", "no")
    where = place_phrase(draw, words) if draw.chance(0.5) else NOTHING
    combinations = thing.combinations + where.combinations
    if roll < 2:
        first = join_words(there, verb, base, no[0], thing.english, where.english)
        return Phrase(first, join_words(no[1], hay, thing.spanish, where.spanish), combinations)
    second = join_words(hay, thing.spanish, where.spanish)
    if roll < 4:
        asked = join_words(verb, there, base, thing.english, where.english)
        return Phrase(punctuate(asked, after="?"), punctuate(second, "¿", "?"), combinations)
    return Phrase(join_words(there, verb, base, thing.english, where.english), second, combinations)


def liking(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a sentence with the verb "like", such as "my sister likes red apples".

    In Spanish, the thing that is liked is the subject of the verb gustar, as in "a mi hermana le gustan las manzanas rojas".
    """
    subject = pronoun(draw, words) if draw.chance(0.4) else _plain(draw, words, ("person", "person", "animal"))
    nouns = words.nouns[draw.choice((*_THINGS, "place"))]
    liked = generic_phrase(draw, words, nouns) if draw.chance(0.4) else noun_phrase(draw, words, nouns)
    tense, verb = draw.choice(TENSES), words.verbs["like"]
    predicate = conjugate(verb, tense, subject.person)
    asked = draw.chance(0.2)
    negative = not asked and draw.chance(0.2)
    rest = Phrase(liked.english, liked.spanish, liked.combinations)
    first = question(subject, predicate, rest) if asked else statement(subject, predicate, rest, negative=negative)
    dropped = subject.pronoun and subject.person in (0, 2)
    clitic = ("me", "le", "nos", "les")[subject.person]
    second = join_words(
        "" if dropped else spanish.contract(possibly("a", subject.spanish), subject.spanish),
        NOT[1] if negative else "",
        form_of(clitic, subject.english) if dropped else possibly(clitic, subject.spanish),
        form_of(verb.forms[tense][liked.person], predicate.finite),
        liked.spanish,
    )
    return Phrase(first.english, punctuate(second, "¿", "?") if asked else second, first.combinations)


def age(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a statement or question about an age, such as "my dog is five years old" or "how old is Ana?"."""
    subject = pronoun(draw, words) if draw.chance(0.2) else _plain(draw, words, ("person", "person", "animal"))
    tense = draw.choice(TENSES)
    forms = words.verbs["have"].forms[tense]
    predicate = conjugate_be("estar", tense, subject.person)
    predicate = predicate._replace(finite=form_of(forms[subject.person], predicate.finite))
    if draw.chance(0.2):
        return question(subject, predicate, NOTHING, word=link("how old", "cuántos años"))
    years = min(quantity(draw), 100)
    number, year = link(numbers.english(years), numbers.spanish(years, feminine=False)), link("years", "años")
    rest = Phrase(join_words(number[0], year[0], possibly("old", year[1])), join_words(number[1], year[1]))
    return statement(subject, predicate, rest)


def price(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a statement or question about a price, such as "the shirt costs twenty-one euros"."""
    subject = noun_phrase(draw, words, words.nouns[draw.choice(_THINGS)], adjective=0.3)
    predicate = conjugate(words.verbs["cost"], "present", subject.person)
    if draw.chance(0.25):
        return question(subject, predicate, NOTHING, word=link("how much", "cuánto"))
    euros = quantity(draw)
    number, unit = link(numbers.english(euros), numbers.spanish(euros, feminine=False)), link("euros", "euros")
    return statement(subject, predicate, Phrase(join_words(number[0], unit[0]), join_words(number[1], unit[1])))


def calendar(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a sentence about a date, a time of day or an event, such as "today is Monday" or "it is half past one"."""
    roll = draw.randint(0, 9)
    if roll < 2:
        time = clock_time(draw)
        be, finite = link("is", "es" if time.spanish.startswith("la ") else "son")
        return Phrase(join_words(possibly("it", be), be, time.english), join_words(finite, time.spanish))
    if roll < 6:
        first, second = link(*draw.choice((("today is", "hoy es"), ("tomorrow is", "mañana es"), ("yesterday was", "ayer fue"))))
        day = link(*draw.choice(words.phrases["weekdays"]))
        if draw.chance(0.2):
            return Phrase(join_words(first, day[0]), join_words(second, day[1]))
        on = date(draw, words)
        return Phrase(
            join_words(first, punctuate(day[0], after=","), on.english), join_words(second, punctuate(day[1], after=","), on.spanish)
        )
    event = noun_phrase(draw, words, words.nouns["event"], adjective=0.2, plural=0.0)
    tense = draw.choice(TENSES[1:])
    predicate = conjugate_be("ser", tense, event.person)
    if tense == "past":
        predicate = predicate._replace(finite=form_of("fue", predicate.finite))
    if roll < 7:
        return question(event, predicate, NOTHING, word=draw.choice((WHEN, WHERE)))
    return statement(event, predicate, time_phrase(draw, words, tense))


def object_question(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a question about the subject, the object or an adverbial of a sentence.

    Examples are "who opened the door?", "how many apples does Ana need?" and "when did the boy eat the bread?".
    """
    subject, verbs = actor(draw, words)
    verb, tense = draw.choice(verbs), draw.choice(TENSES)
    predicate = conjugate(verb, tense, subject.person)
    if not verb.objects:
        word = draw.choice((WHERE, WHEN, WHY) if verb.where == "in" else (WHEN, WHY))
        return question(subject, predicate, circumstance(draw, words, verb, tense, timed=False, placed=word != WHERE), word=word)
    roll = draw.randint(0, 9)
    if roll < 2:
        somebody = NounPhrase(*link("who", "quién"), 1, False, ())
        asked = statement(somebody, conjugate(verb, tense, 1), patient(draw, words, verb))
        return Phrase(punctuate(asked.english, after="?"), punctuate(asked.spanish, "¿", "?"), asked.combinations)
    if roll < 6:
        return question(subject, predicate, patient(draw, words, verb, subject), word=draw.choice((WHEN, WHERE, WHY)))
    counted = draw.choice(verb.objects)
    if counted.kind == "person":
        return question(subject, predicate, NOTHING, word=link("who", "a quién"))
    if roll < 8 or counted.mass:
        return question(subject, predicate, NOTHING, word=link("what", "qué"))
    many, things = link("how many", "cuántas" if counted.feminine else "cuántos"), link(counted.english[1], counted.spanish[1])
    return question(subject, predicate, NOTHING, word=(join_words(many[0], things[0]), join_words(many[1], things[1])))


def greeting(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a greeting such as "good morning Ana", or a greeting and a sentence such as "hello father, it is half past one"."""
    first, second = draw.choice(words.phrases["greetings"])
    roll = draw.randint(0, 9)
    if roll < 1:
        whom = two_names(draw, words)
    else:
        noun = draw.choice(words.addressees if roll < 6 else words.names)
        whom = NounPhrase(*link(noun.english[0], noun.spanish[0]), 1, noun.feminine, (noun,))
    combinations = tuple(f"{first} {noun.lemma}" for noun in whom.heads)
    said = link(first, second)
    first, second = join_words(said[0], whom.english), join_words(said[1], whom.spanish)
    if draw.chance(0.4):
        return Phrase(first, second, combinations)
    news = draw.choice((calendar, calendar, existence, location))(draw, words)
    greeted, answered = punctuate(first, after=","), punctuate(second, after=",")
    return Phrase(join_words(greeted, news.english), join_words(answered, news.spanish), combinations + news.combinations)


def fragment(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a noun phrase without a sentence, such as "the very old house" or "my hat and her gloves"."""
    thing = _anything(draw, words, _DESCRIBED, adjective=0.8)
    roll = draw.randint(0, 9)
    if roll < 3:
        both = coordinate(thing, _anything(draw, words, _DESCRIBED))
        return Phrase(both.english, both.spanish, both.combinations)
    phrase = Phrase(thing.english, thing.spanish, thing.combinations)
    return concatenate(phrase, place_phrase(draw, words)) if roll < 6 else phrase


_WEIGHTS: tuple[tuple[Frame, int], ...] = (
    (action, 40),
    (ability, 10),
    (description, 14),
    (object_question, 8),
    (location, 6),
    (liking, 6),
    (greeting, 7),
    (existence, 5),
    (fragment, 5),
    (calendar, 3),
    (age, 2),
    (price, 2),
)
FRAMES: tuple[Frame, ...] = tuple(frame for frame, weight in _WEIGHTS for _ in range(weight))
"""Functions that sample a sentence, each repeated as often as its weight says."""
