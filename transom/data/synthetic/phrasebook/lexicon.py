"""The phrasebook's words with all their forms, read from the tables beside this file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from transom.data.synthetic.phrasebook import english, spanish
from transom.data.synthetic.phrasebook.english import Tense
from transom.data.synthetic.phrasebook.spanish import Forms
from transom.data.synthetic.phrasebook.tables import Table, read_table

Words = tuple[tuple[str, str], ...]
"""English and Spanish of set phrases."""


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun or a name; forms are singular and plural.

    Attributes:
        kind: class that decides which adjectives and verbs suit it.
        takes_el: whether it is feminine but takes el and un in the singular, as in el agua.
        mass: whether it has no plural and is not counted.
        place: English preposition for being there.
    """

    lemma: str
    kind: str
    english: tuple[str, str]
    spanish: tuple[str, str]
    feminine: bool
    takes_el: bool
    mass: bool
    place: str

    @property
    def is_name(self) -> bool:
        """Tell whether it is somebody's name, which takes no determiner."""
        return self.lemma[0].isupper()


@dataclass(frozen=True, slots=True)
class Adjective:
    """An adjective with its four Spanish forms, the Spanish verb that links it to a subject, and whether it may be "very" so."""

    lemma: str
    forms: Forms
    be: str
    degrees: bool


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb with its forms by tense: English for he and in the past, Spanish for I, he, we and they.

    Attributes:
        objects: nouns that it may govern, none if it is intransitive.
        where: English preposition of the place that may follow: "to" and "at" for a goal, "in" for any place, "none" for no place.
        state: whether it tells a lasting state, so that its past is the imperfect.
    """

    lemma: str
    third: str
    past: str
    infinitive: str
    forms: Mapping[Tense, Forms]
    objects: tuple[Noun, ...]
    where: str
    state: bool


@dataclass(frozen=True, slots=True)
class Determiner:
    """What stands before a noun: Spanish masculine and feminine."""

    english: str
    spanish: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """All words, grouped as the grammar draws them; a choice of weight w stands w times in its group.

    Attributes:
        nouns: by class, names left out.
        adjectives: by the class of nouns that they suit.
        verbs: by their lemma.
        doing: verbs by the class of their subject.
        determiners: by what they stand before.
        pronouns: English, Spanish, and 0 to 3 for a verb form as with I, he, we or they.
        modals: English, and the Spanish present.
        addressees: whom one greets, besides people by name.
        when: set phrases by the tense that they go with.
        phrases: other set phrases by their table.
    """

    nouns: Mapping[str, tuple[Noun, ...]]
    names: tuple[Noun, ...]
    adjectives: Mapping[str, tuple[Adjective, ...]]
    verbs: Mapping[str, Verb]
    doing: Mapping[str, tuple[Verb, ...]]
    determiners: Mapping[str, tuple[Determiner, ...]]
    pronouns: tuple[tuple[str, str, int], ...]
    modals: tuple[tuple[str, Forms], ...]
    addressees: tuple[Noun, ...]
    when: Mapping[Tense, Words]
    phrases: Mapping[str, Words]


def _four(words: str) -> Forms:
    first, second, third, fourth = words.split()
    return first, second, third, fourth


def _noun(lemma: str, entry: str, kind: str, place: str, mass: bool = False) -> Noun:
    word, gender, *irregular = entry.split()
    singular, _, plural = word.partition("/")
    return Noun(
        lemma=lemma,
        kind=kind,
        english=(lemma, irregular[0] if irregular else english.plural(lemma)),
        spanish=(singular, plural or spanish.plural(singular)),
        feminine=gender != "m",
        takes_el=gender == "a",
        mass=mass,
        place=place,
    )


def _nouns(table: Table) -> Iterator[Noun]:
    places = table["place_preposition"]
    for kinds, mass in ((table["nouns"], False), (table["mass"], True)):
        for kind, entries in kinds.items():
            for lemma, entry in entries.items():
                yield _noun(lemma, entry, kind, places.get(lemma, "in"), mass)


def _verb(lemma: str, entry: Table, nouns: Mapping[str, tuple[Noun, ...]]) -> Verb:
    infinitive, change = entry["es"], entry.get("change", "")
    if entry.get("state"):
        past = spanish.imperfect(infinitive)
    elif "preterite" in entry:
        past = _four(entry["preterite"])
    else:
        past = spanish.preterite(infinitive, change)
    return Verb(
        lemma=lemma,
        third=entry.get("third") or english.third_person(lemma),
        past=entry.get("past") or english.past(lemma),
        infinitive=infinitive,
        forms={
            "present": _four(entry["present"]) if "present" in entry else spanish.present(infinitive, change, entry.get("yo", "")),
            "past": past,
            "future": spanish.future(entry.get("future") or infinitive),
        },
        objects=tuple(noun for kind in entry.get("what", "").split() for noun in nouns[kind]),
        where=entry.get("where", "in"),
        state=entry.get("state", False),
    )


def _adjectives(table: Table) -> Mapping[str, tuple[Adjective, ...]]:
    suiting: dict[str, tuple[Adjective, ...]] = {}
    for lemma, entry in table.items():
        forms = _four(entry["forms"]) if "forms" in entry else spanish.agreeing(entry["es"])
        for kind in entry["of"].split():
            suiting[kind] = (*suiting.get(kind, ()), Adjective(lemma, forms, entry["be"], entry.get("degrees", True)))
    return suiting


@cache
def lexicon() -> Lexicon:
    """Read the packaged tables and inflect all their words."""
    words, verb_table, phrases = read_table("lexicon.toml"), read_table("verbs.toml"), read_table("phrases.toml")
    nouns: dict[str, tuple[Noun, ...]] = {}
    for noun in _nouns(words):
        nouns[noun.kind] = (*nouns.get(noun.kind, ()), noun)
    by_lemma = {noun.lemma: noun for group in nouns.values() for noun in group}
    verbs = {lemma: _verb(lemma, entry, nouns) for lemma, entry in verb_table.items()}
    doing: dict[str, tuple[Verb, ...]] = {}
    for lemma, entry in verb_table.items():
        for kind in entry.get("who", "").split():
            doing[kind] = (*doing.get(kind, ()), verbs[lemma])
    return Lexicon(
        nouns=nouns,
        names=tuple(
            Noun(name, "person", (name, name), (name, name), feminine=gender == "f", takes_el=False, mass=False, place="in")
            for gender, group in words["names"].items()
            for name in group
        ),
        adjectives=_adjectives(words["adjectives"]),
        verbs=verbs,
        doing=doing,
        determiners={
            use: tuple(Determiner(word, (m, f)) for word, (m, f, weight) in group.items() for _ in range(weight))
            for use, group in phrases["determiners"].items()
        },
        pronouns=tuple((word, es, person) for word, (es, person, weight) in phrases["pronouns"].items() for _ in range(weight)),
        modals=tuple((word, _four(forms)) for word, forms in phrases["modals"].items()),
        addressees=tuple(by_lemma[lemma] for lemma in phrases["addressees"]["nouns"]),
        when={tense: tuple(group.items()) for tense, group in phrases["when"].items()},
        phrases={group: tuple(phrases[group].items()) for group in ("places", "degrees", "frequencies", "weekdays", "months", "greetings")},
    )
