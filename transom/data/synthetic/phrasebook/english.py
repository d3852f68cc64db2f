"""Rules for English word forms, such as plurals, verb forms and the indefinite article."""

from typing import Literal

Tense = Literal["present", "past", "future"]

_VOWELS = "aeiou"
_AN_EXCEPTIONS = ("use", "uni", "euro")
_BE = {"present": ("am", "is", "are", "are"), "past": ("was", "was", "were", "were")}


def plural(noun: str) -> str:
    """Form the regular plural of an English noun.

    >>> plural("box"), plural("city"), plural("boy")
    ('boxes', 'cities', 'boys')
    """
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in _VOWELS:
        return noun[:-1] + "ies"
    return noun + "s"


def third_person(verb: str) -> str:
    """Form the third person singular of a regular English verb in the present tense.

    >>> third_person("go"), third_person("cry"), third_person("wash")
    ('goes', 'cries', 'washes')
    """
    return verb + "es" if verb.endswith("o") else plural(verb)


def past(verb: str) -> str:
    """Form the past tense of a regular English verb.

    >>> past("close"), past("cry"), past("help")
    ('closed', 'cried', 'helped')
    """
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in _VOWELS:
        return verb[:-1] + "ied"
    return verb + "ed"


def with_article(noun_phrase: str) -> str:
    """Put the indefinite article "a" or "an" before a phrase.

    >>> with_article("old car"), with_article("useful book")
    ('an old car', 'a useful book')
    """
    vowel = noun_phrase[0] in _VOWELS + "I" and not noun_phrase.startswith(_AN_EXCEPTIONS)
    return ("an " if vowel else "a ") + noun_phrase


def be(tense: Tense, person: int) -> str:
    """Return the form of "be" in a tense, or "will" in the future tense.

    Args:
        tense: the tense.
        person: index of the person, where 0 to 3 are I, he, we and they.
    """
    return "will" if tense == "future" else _BE[tense][person]


def auxiliary(tense: Tense, person: int) -> str:
    """Return the auxiliary verb of negative statements and questions, such as "does".

    Args:
        tense: the tense.
        person: index of the person, where 0 to 3 are I, he, we and they.
    """
    if tense == "present":
        return "does" if person == 1 else "do"
    return "did" if tense == "past" else "will"
