"""Sentence types of the phrasebook and their weights."""

from collections.abc import Callable

from transom.data.synthetic.phrasebook import english, numbers, spanish
from transom.data.synthetic.phrasebook.clauses import (
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
from transom.data.synthetic.phrasebook.phrases import (
    NOTHING,
    NounPhrase,
    Phrase,
    clock_time,
    date,
    generic_phrase,
    join_words,
    noun_phrase,
    place_phrase,
    pronoun,
    quantity,
    time_phrase,
    two_names,
)

Frame = Callable[[RandomChoices, Lexicon], Phrase]

WHERE, WHEN, WHY = ("where", "dónde"), ("when", "cuándo"), ("why", "por qué")
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
        return statement(subject, predicate, concatenate(target), adverb=draw.choice(words.phrases["frequencies"]))
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
        subject = NounPhrase(*draw.choice((("he", "él", 1, False), ("she", "ella", 1, True))), (), pronoun=True)
    elif roll < 18:
        subject = two_names(draw, words)
    elif roll < 26:
        subject = generic_phrase(draw, words, words.nouns[draw.choice(_DESCRIBED)], adjective=0.0)
    else:
        subject = _plain(draw, words, _DESCRIBED, adjective=0.0)
    adjective = draw.choice(words.adjectives[subject.heads[0].kind if subject.heads else "person"])
    degree = draw.choice(words.phrases["degrees"]) if adjective.degrees and draw.chance(0.3) else ("", "")
    rest = Phrase(
        join_words(degree[0], adjective.lemma),
        join_words(degree[1], adjective.forms[2 * subject.plural + subject.feminine]),
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
    verb = english.be(tense, thing.person)
    base = "be" if tense == "future" else ""
    where = place_phrase(draw, words) if draw.chance(0.5) else NOTHING
    combinations = thing.combinations + where.combinations
    if roll < 2:
        first = join_words("there", verb, base, "no", thing.english, where.english)
        return Phrase(first, join_words("no", _HAY[tense], thing.spanish, where.spanish), combinations)
    second = join_words(_HAY[tense], thing.spanish, where.spanish)
    if roll < 4:
        return Phrase(join_words(verb, "there", base, thing.english, where.english) + "?", f"¿{second}?", combinations)
    return Phrase(join_words("there", verb, base, thing.english, where.english), second, combinations)


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
    second = join_words(
        "" if dropped else spanish.contract("a", subject.spanish),
        "no" if negative else "",
        ("me", "le", "nos", "les")[subject.person],
        verb.forms[tense][liked.person],
        liked.spanish,
    )
    return Phrase(first.english, f"¿{second}?" if asked else second, first.combinations)


def age(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a statement or question about an age, such as "my dog is five years old" or "how old is Ana?"."""
    subject = pronoun(draw, words) if draw.chance(0.2) else _plain(draw, words, ("person", "person", "animal"))
    tense = draw.choice(TENSES)
    forms = words.verbs["have"].forms[tense]
    predicate = conjugate_be("estar", tense, subject.person)._replace(finite=forms[subject.person])
    if draw.chance(0.2):
        return question(subject, predicate, NOTHING, word=("how old", "cuántos años"))
    years = min(quantity(draw), 100)
    rest = Phrase(f"{numbers.english(years)} years old", f"{numbers.spanish(years, feminine=False)} años")
    return statement(subject, predicate, rest)


def price(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a statement or question about a price, such as "the shirt costs twenty-one euros"."""
    subject = noun_phrase(draw, words, words.nouns[draw.choice(_THINGS)], adjective=0.3)
    predicate = conjugate(words.verbs["cost"], "present", subject.person)
    if draw.chance(0.25):
        return question(subject, predicate, NOTHING, word=("how much", "cuánto"))
    euros = quantity(draw)
    return statement(subject, predicate, Phrase(f"{numbers.english(euros)} euros", f"{numbers.spanish(euros, feminine=False)} euros"))


def calendar(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a sentence about a date, a time of day or an event, such as "today is Monday" or "it is half past one"."""
    roll = draw.randint(0, 9)
    if roll < 2:
        time = clock_time(draw)
        return Phrase(f"it is {time.english}", f"{'es' if time.spanish.startswith('la ') else 'son'} {time.spanish}")
    if roll < 6:
        first, second = draw.choice((("today is", "hoy es"), ("tomorrow is", "mañana es"), ("yesterday was", "ayer fue")))
        day = draw.choice(words.phrases["weekdays"])
        if draw.chance(0.2):
            return Phrase(f"{first} {day[0]}", f"{second} {day[1]}")
        on = date(draw, words)
        return Phrase(f"{first} {day[0]}, {on.english}", f"{second} {day[1]}, {on.spanish}")
    event = noun_phrase(draw, words, words.nouns["event"], adjective=0.2, plural=0.0)
    tense = draw.choice(TENSES[1:])
    predicate = conjugate_be("ser", tense, event.person)
    if tense == "past":
        predicate = predicate._replace(finite="fue")
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
        somebody = NounPhrase("who", "quién", 1, False, ())
        asked = statement(somebody, conjugate(verb, tense, 1), patient(draw, words, verb))
        return Phrase(f"{asked.english}?", f"¿{asked.spanish}?", asked.combinations)
    if roll < 6:
        return question(subject, predicate, patient(draw, words, verb, subject), word=draw.choice((WHEN, WHERE, WHY)))
    counted = draw.choice(verb.objects)
    if counted.kind == "person":
        return question(subject, predicate, NOTHING, word=("who", "a quién"))
    if roll < 8 or counted.mass:
        return question(subject, predicate, NOTHING, word=("what", "qué"))
    many = "cuántas" if counted.feminine else "cuántos"
    return question(subject, predicate, NOTHING, word=(f"how many {counted.english[1]}", f"{many} {counted.spanish[1]}"))


def greeting(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a greeting such as "good morning Ana", or a greeting and a sentence such as "hello father, it is half past one"."""
    first, second = draw.choice(words.phrases["greetings"])
    roll = draw.randint(0, 9)
    if roll < 1:
        whom = two_names(draw, words)
    else:
        noun = draw.choice(words.addressees if roll < 6 else words.names)
        whom = NounPhrase(noun.english[0], noun.spanish[0], 1, noun.feminine, (noun,))
    combinations = tuple(f"{first} {noun.lemma}" for noun in whom.heads)
    first, second = f"{first} {whom.english}", f"{second} {whom.spanish}"
    if draw.chance(0.4):
        return Phrase(first, second, combinations)
    news = draw.choice((calendar, calendar, existence, location))(draw, words)
    return Phrase(f"{first}, {news.english}", f"{second}, {news.spanish}", combinations + news.combinations)


def fragment(draw: RandomChoices, words: Lexicon) -> Phrase:
    """Sample a noun phrase without a sentence, such as "the very old house" or "my hat and her gloves"."""
    thing = _anything(draw, words, _DESCRIBED, adjective=0.8)
    roll = draw.randint(0, 9)
    if roll < 3:
        other = _anything(draw, words, _DESCRIBED)
        return Phrase(
            f"{thing.english} and {other.english}",
            spanish.coordinate(thing.spanish, other.spanish),
            thing.combinations + other.combinations,
        )
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
