"""Entities as tags of words: IOB2 (B-PER, I-PER, O) and IOBES (S-PER for a single word, E-PER for the last one), and entity F1."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Scheme = Literal["plain", "iob", "iobes"]
"""How tags are read: each for itself, as parts of speech are, or several together as the name of an entity."""

OUTSIDE = "O"
_OF_ENTITY = re.compile("[BIES]-.+")


class Entity(NamedTuple):
    """Words that are named together.

    Attributes:
        label: what they are.
        start: the first word, from 0.
        end: one more than the last word.
    """

    label: str
    start: int
    end: int


class OfEntities(NamedTuple):
    """How well the entities of one label are found.

    Attributes:
        n: entities there are.
        precision: fraction of those found that are right.
        recall: fraction of those there are that were found.
        f1: harmonic mean of precision and recall.
    """

    n: int
    precision: float
    recall: float
    f1: float


def scheme_of(tags: Iterable[str]) -> Scheme:
    """Tell the scheme of tags: of entities where B-, I-, E- or S- stands before some names and the only other tag is O.

    >>> scheme_of(["O", "B-PER", "I-PER"]), scheme_of(["O", "S-PER"]), scheme_of(["NOUN", "VERB"])
    ('iob', 'iobes', 'plain')
    """
    used = set(tags) - {OUTSIDE}
    if not used or not all(map(_OF_ENTITY.fullmatch, used)):
        return "plain"
    return "iobes" if any(tag[0] in "ES" for tag in used) else "iob"


def odd_tag(tags: Iterable[str]) -> str | None:
    """Return a tag that spoils a scheme of entities: a plain one beside O and B-; None where there is none."""
    used = sorted(set(tags) - {OUTSIDE})
    plain = [tag for tag in used if not _OF_ENTITY.fullmatch(tag)]
    return plain[0] if plain and any(tag.startswith("B-") for tag in used) else None


def closed(tags: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Return all tags that a scheme has for the labels in use, in their order as text.

    >>> closed(["O", "B-PER"], "iob")
    ('B-PER', 'I-PER', 'O')
    """
    used = set(tags)
    if scheme != "plain":
        prefixes = "BI" if scheme == "iob" else "BIES"
        used = {f"{prefix}-{tag[2:]}" for tag in used - {OUTSIDE} for prefix in prefixes} | {OUTSIDE}
    return tuple(sorted(used))


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """Read the entities of a sentence; any tags have a meaning, as in the scorer of CoNLL 2000.

    An entity begins at B and S, after E, S and O, and where the label changes.

    >>> entities_of(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [Entity(label='PER', start=0, end=2), Entity(label='LOC', start=3, end=4), Entity(label='LOC', start=4, end=5)]
    """
    found = list[Entity]()
    before = OUTSIDE
    for place, tag in enumerate(tags):
        if tag != OUTSIDE:
            if begins(before, tag):
                found.append(Entity(tag[2:], place, place))
            found[-1] = found[-1]._replace(end=place + 1)
        before = tag
    return found


def begins(before: str, tag: str) -> bool:
    """Tell whether an entity begins with a tag, which is not O, after the tag before it."""
    return tag[0] in "BS" or before[0] in "ESO" or before[2:] != tag[2:]


def repaired(tags: Sequence[str]) -> list[str]:
    """Return IOB tags as IOB2, in which B begins each entity: I becomes B where it begins one, as it does in IOB1.

    >>> repaired(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    ['B-PER', 'I-PER', 'O', 'B-LOC', 'B-LOC']
    """
    read = pairwise((OUTSIDE, *tags))
    return [f"B{tag[1:]}" if tag != OUTSIDE and begins(before, tag) else tag for before, tag in read]


def broken(tags: Sequence[str]) -> int | None:
    """Return the place of the first tag that does not fit into IOBES; None where all do.

    >>> broken(["B-PER", "E-PER", "O", "S-LOC"]), broken(["B-PER", "O"]), broken(["I-PER", "E-PER"])
    (None, 1, 0)
    """
    for place, (before, tag) in enumerate(pairwise((OUTSIDE, *tags, OUTSIDE))):
        is_open = before[0] in "BI"
        if is_open != (tag[0] in "IE") or (is_open and before[2:] != tag[2:]):
            return place
    return None


def entity_scores(expected: Iterable[Sequence[str]], found: Iterable[Sequence[str]]) -> tuple[OfEntities, dict[str, OfEntities]]:
    """Compare entities, of all labels together (micro-averaged) and of each: right where label, start and end agree.

    F1 = 2 P R / (P + R), with P = right / found and R = right / expected (Tjong Kim Sang & De Meulder 2003); 0 where there are none.

    Args:
        expected: tags of each sentence.
        found: likewise, as many.
    """
    n_expected, n_found, n_right = Counter[str](), Counter[str](), Counter[str]()
    for known, answered in zip(expected, found, strict=True):
        a, b = set(entities_of(known)), set(entities_of(answered))
        n_expected.update(each.label for each in a)
        n_found.update(each.label for each in b)
        n_right.update(each.label for each in a & b)
    of_each = {label: _scores(n_right[label], n_found[label], n_expected[label]) for label in sorted(n_expected | n_found)}
    return _scores(n_right.total(), n_found.total(), n_expected.total()), of_each


def _scores(right: int, found: int, expected: int) -> OfEntities:
    return OfEntities(expected, right / max(found, 1), right / max(expected, 1), 2 * right / max(found + expected, 1))
