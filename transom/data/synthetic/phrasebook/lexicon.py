"""The phrasebook's words with all their forms, read from the tables next to this module."""

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
        kind: semantic class, which determines the adjectives and verbs that suit it.
        takes_el: True for a feminine noun that takes el and un in the singular, as in el agua.
        mass: True for a mass noun, which has no plural.
        place: English preposition of place.
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
        """True for a person's name, which takes no determiner."""
        return self.lemma[0].isupper()


@dataclass(frozen=True, slots=True)
class Adjective:
    """An adjective with its four Spanish forms, its Spanish copula (ser or estar), and whether it can be graded by "very"."""

    lemma: str
    forms: Forms
    be: str
    degrees: bool


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb with its forms: English third person and past, and Spanish by tense for I, he, we and they.

    Attributes:
        objects: nouns that it can govern; empty for an intransitive verb.
        where: which phrase of place may follow the verb: "to" or "at" introduces a goal, "in" a location; "none" if no such phrase.
        state: True for a stative verb, whose Spanish past is the imperfect.
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
    """A determiner: English, and Spanish masculine and feminine."""

    english: str
    spanish: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """All words, grouped for sampling; an item of weight w occurs w times in its group.

    Attributes:
        nouns: nouns by semantic class, without names.
        adjectives: adjectives by the class of the nouns that they suit.
        verbs: verbs by lemma.
        doing: verbs by the class of their subject.
        determiners: determiners by the kind of noun phrase.
        pronouns: English, Spanish, and the person of the verb, 0 to 3 for I, he, we, they.
        modals: English form, and Spanish present forms.
        addressees: nouns for people who are greeted, besides names.
        when: set phrases of time by tense.
        phrases: other set phrases by table.
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
        forms = _four(entry["forms"]) if "forms" in entry else spanish.inflect_adjective(entry["es"])
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
