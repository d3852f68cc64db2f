"""Words of the phrasebook with all their forms, read from the TOML files next to this module."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from transom.data.synthetic.phrasebook import english, spanish
from transom.data.synthetic.phrasebook.english import Tense
from transom.data.synthetic.phrasebook.spanish import Forms
from transom.data.synthetic.phrasebook.tables import Table, read_table

Words = tuple[tuple[str, str], ...]
"""Set phrases, each in English and Spanish."""


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun or a person's name.

    Attributes:
        lemma: the English singular.
        kind: semantic class of the noun, such as "animal", which determines the adjectives and verbs that can be combined with the noun.
        english: English singular and plural.
        spanish: Spanish singular and plural.
        feminine: True if the noun is feminine in Spanish.
        takes_el: True for a feminine noun that takes the articles el and un in the singular, as in "el agua".
        mass: True for a mass noun, which is used only in the singular.
        place: English preposition of place before the noun, such as "in".
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
        """True for a person's name, which has no determiner."""
        return self.lemma[0].isupper()


@dataclass(frozen=True, slots=True)
class Adjective:
    """An adjective.

    Attributes:
        lemma: the English adjective.
        forms: masculine and feminine Spanish forms in the singular, then in the plural.
        be: Spanish verb ("ser" or "estar") that links the adjective to its subject.
        degrees: True if an adverb of degree such as "very" can precede the adjective.
    """

    lemma: str
    forms: Forms
    be: str
    degrees: bool


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb.

    Attributes:
        lemma: English base form.
        third: English third person singular in the present tense.
        past: English past tense.
        infinitive: Spanish infinitive.
        forms: Spanish forms for I, he, we and they, by tense.
        objects: nouns that can be the object of the verb. Empty for an intransitive verb.
        where: kind of adverbial of place that may follow the verb. "to" and "at" introduce a goal, "in" stands for a location, and "none"
            allows neither.
        state: True for a stative verb, whose Spanish past tense is the imperfect.
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
    """A determiner.

    Attributes:
        english: the English determiner.
        spanish: masculine and feminine form of the Spanish determiner.
    """

    english: str
    spanish: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Lexicon:
    """All words of the phrasebook, grouped for sampling.

    A determiner or pronoun of weight w occurs w times in its group, so that it is sampled w times as often.

    Attributes:
        nouns: nouns by semantic class, without names.
        names: names of people.
        adjectives: adjectives by the semantic class of nouns that they can modify.
        verbs: verbs by lemma.
        doing: verbs by the semantic class of their subject.
        determiners: determiners by the kind of noun phrase that they begin, such as "singular" or "mass".
        pronouns: English pronoun, Spanish pronoun, and index of the person, where 0 to 3 are I, he, we and they.
        modals: English modal verb, and its Spanish forms in the present tense.
        addressees: nouns for people who can be greeted. People can also be greeted by name.
        when: set phrases of time by tense.
        phrases: other set phrases by the name of their table.
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
    """Read the lexicon from the TOML files next to this module, and form all inflected forms of the words."""
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
