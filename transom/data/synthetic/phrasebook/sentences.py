"""The sentence types of the phrasebook and their weights."""

from collections.abc import Callable

from transom.data.synthetic.phrasebook import english, numbers, spanish
from transom.data.synthetic.phrasebook.clauses import TENSES, actor, ask, be, circumstance, do, followed, patient, state, would
from transom.data.synthetic.phrasebook.draw import Draw
from transom.data.synthetic.phrasebook.english import Tense
from transom.data.synthetic.phrasebook.lexicon import Lexicon
from transom.data.synthetic.phrasebook.phrases import (
    NOTHING,
    NounPhrase,
    Phrase,
    clock,
    date,
    generic_phrase,
    noun_phrase,
    place,
    pronoun,
    quantity,
    spelled,
    two_names,
    when,
)

Frame = Callable[[Draw, Lexicon], Phrase]

WHERE, WHEN, WHY = ("where", "dónde"), ("when", "cuándo"), ("why", "por qué")
_THINGS = ("food", "food", "drink", "clothing", "text", "opening", "vehicle", "thing")
_DESCRIBED = ("person", "person", "animal", "place", "event", *_THINGS)


def _anything(draw: Draw, words: Lexicon, kinds: tuple[str, ...], adjective: float = 0.45, plural: float = 0.35) -> NounPhrase:
    return noun_phrase(draw, words, words.nouns[draw.pick(kinds)], adjective=adjective, plural=plural)


def action(draw: Draw, words: Lexicon) -> Phrase:
    """Sample an action: "my sister bought two red apples yesterday"."""
    subject, verbs = actor(draw, words)
    verb = draw.pick(verbs)
    tense = draw.pick(TENSES)
    predicate = do(verb, tense, subject.person)
    target = patient(draw, words, verb, subject) if verb.objects else NOTHING
    rest = followed(target, circumstance(draw, words, verb, tense))
    way = draw.between(0, 99)
    if way < 15:
        return ask(subject, predicate, rest)
    if way < 30:
        return state(subject, predicate, rest, negative=True)
    if way < 40:
        return state(subject, predicate, followed(target), adverb=draw.pick(words.phrases["frequencies"]))
    return state(subject, predicate, rest)


def ability(draw: Draw, words: Lexicon) -> Phrase:
    """Sample a modal sentence (ability, obligation or wish): "the dog cannot swim"."""
    subject, verbs = actor(draw, words)
    verb = draw.pick(verbs)
    while verb.state:
        verb = draw.pick(verbs)
    predicate = would(draw.pick(words.modals), verb, subject.person)
    target = patient(draw, words, verb, subject) if verb.objects else NOTHING
    rest = followed(target, circumstance(draw, words, verb, "present", timed=False))
    way = draw.between(0, 99)
    if way < 20:
        return ask(subject, predicate, rest)
    return state(subject, predicate, rest, negative=way < 40)


def _plain(draw: Draw, words: Lexicon, kinds: tuple[str, ...], adjective: float = 0.15) -> NounPhrase:
    """Sample a noun phrase that seldom has an adjective; people may be named."""
    kind = draw.pick(kinds)
    nouns = words.names if kind == "person" and draw.chance(0.4) else words.nouns[kind]
    return noun_phrase(draw, words, nouns, adjective=adjective)


def description(draw: Draw, words: Lexicon) -> Phrase:
    """Sample a description: "the water was very cold", "is she tired?"."""
    way = draw.between(0, 99)
    if way < 8:
        subject = NounPhrase(*draw.pick((("he", "él", 1, False), ("she", "ella", 1, True))), (), pronoun=True)
    elif way < 18:
        subject = two_names(draw, words)
    elif way < 26:
        subject = generic_phrase(draw, words, words.nouns[draw.pick(_DESCRIBED)], adjective=0.0)
    else:
        subject = _plain(draw, words, _DESCRIBED, adjective=0.0)
    adjective = draw.pick(words.adjectives[subject.heads[0].kind if subject.heads else "person"])
    degree = draw.pick(words.phrases["degrees"]) if adjective.degrees and draw.chance(0.3) else ("", "")
    rest = Phrase(
        spelled(degree[0], adjective.lemma),
        spelled(degree[1], adjective.forms[2 * subject.plural + subject.feminine]),
        tuple(f"{adjective.lemma} {noun.lemma}" for noun in subject.heads),
    )
    predicate = be(adjective.be, draw.pick(TENSES), subject.person)
    if draw.chance(0.2):
        return ask(subject, predicate, rest, rest_first=True)
    return state(subject, predicate, rest, negative=draw.chance(0.2))


def location(draw: Draw, words: Lexicon) -> Phrase:
    """Sample a location: "the keys are in the old car"; also "where is my hat?"."""
    subject = pronoun(draw, words) if draw.chance(0.15) else _plain(draw, words, ("person", "animal", "text", "clothing", "thing"))
    predicate = be("estar", draw.pick(TENSES), subject.person)
    if draw.chance(0.25):
        return ask(subject, predicate, NOTHING, word=WHERE)
    where = place(draw, words)
    if draw.chance(0.2):
        return ask(subject, predicate, where)
    return state(subject, predicate, where, negative=draw.chance(0.2))


_HAY: dict[Tense, str] = {"present": "hay", "past": "había", "future": "habrá"}


def existence(draw: Draw, words: Lexicon) -> Phrase:
    """Sample a statement of existence: "there are three birds in the garden", "is there milk?", "there are no eggs"."""
    tense = draw.pick(TENSES)
    nouns = words.nouns[draw.pick(_DESCRIBED)]
    way = draw.between(0, 9)
    thing = noun_phrase(draw, words, nouns, plural=1.0, bare=1.0) if way < 2 else noun_phrase(draw, words, nouns, indefinite=True)
    verb = english.be(tense, thing.person)
    base = "be" if tense == "future" else ""
    where = place(draw, words) if draw.chance(0.5) else NOTHING
    combinations = thing.combinations + where.combinations
    if way < 2:
        first = spelled("there", verb, base, "no", thing.english, where.english)
        return Phrase(first, spelled("no", _HAY[tense], thing.spanish, where.spanish), combinations)
    second = spelled(_HAY[tense], thing.spanish, where.spanish)
    if way < 4:
        return Phrase(spelled(verb, "there", base, thing.english, where.english) + "?", f"¿{second}?", combinations)
    return Phrase(spelled("there", verb, base, thing.english, where.english), second, combinations)


def liking(draw: Draw, words: Lexicon) -> Phrase:
    """Sample a sentence of liking; in Spanish the thing liked is the subject of gustar.

    Example: "my sister likes red apples" and "a mi hermana le gustan las manzanas rojas".
    """
    subject = pronoun(draw, words) if draw.chance(0.4) else _plain(draw, words, ("person", "person", "animal"))
    nouns = words.nouns[draw.pick((*_THINGS, "place"))]
    liked = generic_phrase(draw, words, nouns) if draw.chance(0.4) else noun_phrase(draw, words, nouns)
    tense, verb = draw.pick(TENSES), words.verbs["like"]
    predicate = do(verb, tense, subject.person)
    asked = draw.chance(0.2)
    negative = not asked and draw.chance(0.2)
    rest = Phrase(liked.english, liked.spanish, liked.combinations)
    first = ask(subject, predicate, rest) if asked else state(subject, predicate, rest, negative=negative)
    dropped = subject.pronoun and subject.person in (0, 2)
    second = spelled(
        "" if dropped else spanish.contracted("a", subject.spanish),
        "no" if negative else "",
        ("me", "le", "nos", "les")[subject.person],
        verb.forms[tense][liked.person],
        liked.spanish,
    )
    return Phrase(first.english, f"¿{second}?" if asked else second, first.combinations)


def age(draw: Draw, words: Lexicon) -> Phrase:
    """Sample a statement of age: "my dog is five years old", "how old is Ana?"."""
    subject = pronoun(draw, words) if draw.chance(0.2) else _plain(draw, words, ("person", "person", "animal"))
    tense = draw.pick(TENSES)
    forms = words.verbs["have"].forms[tense]
    predicate = be("estar", tense, subject.person)._replace(finite=forms[subject.person])
    if draw.chance(0.2):
        return ask(subject, predicate, NOTHING, word=("how old", "cuántos años"))
    years = min(quantity(draw), 100)
    rest = Phrase(f"{numbers.english(years)} years old", f"{numbers.spanish(years, feminine=False)} años")
    return state(subject, predicate, rest)


def price(draw: Draw, words: Lexicon) -> Phrase:
    """Sample a price: "the shirt costs twenty-one euros", "how much do those hats cost?"."""
    subject = noun_phrase(draw, words, words.nouns[draw.pick(_THINGS)], adjective=0.3)
    predicate = do(words.verbs["cost"], "present", subject.person)
    if draw.chance(0.25):
        return ask(subject, predicate, NOTHING, word=("how much", "cuánto"))
    euros = quantity(draw)
    return state(subject, predicate, Phrase(f"{numbers.english(euros)} euros", f"{numbers.spanish(euros, feminine=False)} euros"))


def calendar(draw: Draw, words: Lexicon) -> Phrase:
    """Sample a day, a date or a time: "today is Monday, the third of May", "it is half past one"."""
    way = draw.between(0, 9)
    if way < 2:
        time = clock(draw)
        return Phrase(f"it is {time.english}", f"{'es' if time.spanish.startswith('la ') else 'son'} {time.spanish}")
    if way < 6:
        first, second = draw.pick((("today is", "hoy es"), ("tomorrow is", "mañana es"), ("yesterday was", "ayer fue")))
        day = draw.pick(words.phrases["weekdays"])
        if draw.chance(0.2):
            return Phrase(f"{first} {day[0]}", f"{second} {day[1]}")
        on = date(draw, words)
        return Phrase(f"{first} {day[0]}, {on.english}", f"{second} {day[1]}, {on.spanish}")
    event = noun_phrase(draw, words, words.nouns["event"], adjective=0.2, plural=0.0)
    tense = draw.pick(TENSES[1:])
    predicate = be("ser", tense, event.person)
    if tense == "past":
        predicate = predicate._replace(finite="fue")
    if way < 7:
        return ask(event, predicate, NOTHING, word=draw.pick((WHEN, WHERE)))
    return state(event, predicate, when(draw, words, tense))


def question(draw: Draw, words: Lexicon) -> Phrase:
    """Sample a question about the subject, the object or an adverbial.

    Examples: "what did the boy eat?", "how many apples does Ana need?", "who opened the door?".
    """
    subject, verbs = actor(draw, words)
    verb, tense = draw.pick(verbs), draw.pick(TENSES)
    predicate = do(verb, tense, subject.person)
    if not verb.objects:
        word = draw.pick((WHERE, WHEN, WHY) if verb.where == "in" else (WHEN, WHY))
        return ask(subject, predicate, circumstance(draw, words, verb, tense, timed=False, placed=word != WHERE), word=word)
    way = draw.between(0, 9)
    if way < 2:
        somebody = NounPhrase("who", "quién", 1, False, ())
        asked = state(somebody, do(verb, tense, 1), patient(draw, words, verb))
        return Phrase(f"{asked.english}?", f"¿{asked.spanish}?", asked.combinations)
    if way < 6:
        return ask(subject, predicate, patient(draw, words, verb, subject), word=draw.pick((WHEN, WHERE, WHY)))
    counted = draw.pick(verb.objects)
    if counted.kind == "person":
        return ask(subject, predicate, NOTHING, word=("who", "a quién"))
    if way < 8 or counted.mass:
        return ask(subject, predicate, NOTHING, word=("what", "qué"))
    many = "cuántas" if counted.feminine else "cuántos"
    return ask(subject, predicate, NOTHING, word=(f"how many {counted.english[1]}", f"{many} {counted.spanish[1]}"))


def greeting(draw: Draw, words: Lexicon) -> Phrase:
    """Sample a greeting, optionally followed by a statement: "good morning Ana", "hello father, it is half past one"."""
    first, second = draw.pick(words.phrases["greetings"])
    way = draw.between(0, 9)
    if way < 1:
        whom = two_names(draw, words)
    else:
        noun = draw.pick(words.addressees if way < 6 else words.names)
        whom = NounPhrase(noun.english[0], noun.spanish[0], 1, noun.feminine, (noun,))
    combinations = tuple(f"{first} {noun.lemma}" for noun in whom.heads)
    first, second = f"{first} {whom.english}", f"{second} {whom.spanish}"
    if draw.chance(0.4):
        return Phrase(first, second, combinations)
    news = draw.pick((calendar, calendar, existence, location))(draw, words)
    return Phrase(f"{first}, {news.english}", f"{second}, {news.spanish}", combinations + news.combinations)


def fragment(draw: Draw, words: Lexicon) -> Phrase:
    """Sample a noun phrase on its own: "the very old house", "two birds behind the church", "my hat and her gloves"."""
    thing = _anything(draw, words, _DESCRIBED, adjective=0.8)
    way = draw.between(0, 9)
    if way < 3:
        other = _anything(draw, words, _DESCRIBED)
        return Phrase(
            f"{thing.english} and {other.english}", spanish.joined(thing.spanish, other.spanish), thing.combinations + other.combinations
        )
    phrase = Phrase(thing.english, thing.spanish, thing.combinations)
    return followed(phrase, place(draw, words)) if way < 6 else phrase


_WEIGHTS: tuple[tuple[Frame, int], ...] = (
    (action, 40),
    (ability, 10),
    (description, 14),
    (question, 8),
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
"""Sentence types, each repeated by its weight."""
