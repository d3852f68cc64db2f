"""English word forms by rule: plurals, verb forms and the indefinite article."""

from typing import Literal

Tense = Literal["present", "past", "future"]

_VOWELS = "aeiou"
_AN_EXCEPTIONS = ("use", "uni", "euro")
_BE = {"present": ("am", "is", "are", "are"), "past": ("was", "was", "were", "were")}


def plural(noun: str) -> str:
    """Form a regular plural.

    >>> plural("box"), plural("city"), plural("boy")
    ('boxes', 'cities', 'boys')
    """
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in _VOWELS:
        return noun[:-1] + "ies"
    return noun + "s"


def third_person(verb: str) -> str:
    """Form the third person singular of the present.

    >>> third_person("go"), third_person("cry"), third_person("wash")
    ('goes', 'cries', 'washes')
    """
    return verb + "es" if verb.endswith("o") else plural(verb)


def past(verb: str) -> str:
    """Form a regular past.

    >>> past("close"), past("cry"), past("help")
    ('closed', 'cried', 'helped')
    """
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in _VOWELS:
        return verb[:-1] + "ied"
    return verb + "ed"


def with_article(noun_phrase: str) -> str:
    """Put the indefinite article before a phrase.

    >>> with_article("old car"), with_article("useful book")
    ('an old car', 'a useful book')
    """
    vowel = noun_phrase[0] in _VOWELS + "I" and not noun_phrase.startswith(_AN_EXCEPTIONS)
    return ("an " if vowel else "a ") + noun_phrase


def be(tense: Tense, person: int) -> str:
    """Return the form of "be" for I, he, we or they (0 to 3); in the future "will", which "be" follows."""
    return "will" if tense == "future" else _BE[tense][person]


def auxiliary(tense: Tense, person: int) -> str:
    """Return the auxiliary of negation and question for I, he, we or they (0 to 3)."""
    if tense == "present":
        return "does" if person == 1 else "do"
    return "did" if tense == "past" else "will"
