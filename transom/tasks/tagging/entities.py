"""Tagging schemes of entities, and entity F1.

In IOB2, the first word of a person's name is tagged B-PER, its other words I-PER, and words outside of entities O. In IOBES, the last word
of an entity is tagged E-PER instead, and an entity of a single word S-PER.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

Scheme = Literal["plain", "iob", "iobes"]
"""Tagging scheme. In "plain", tags are independent of each other, such as parts of speech. In "iob" and "iobes", tags mark entities."""

OUTSIDE = "O"
_ENTITY_TAG = re.compile("[BIES]-.+")


class Entity(NamedTuple):
    """An entity, which consists of consecutive words of a sentence and has one label.

    Attributes:
        label: type of the entity, such as PER.
        start: index of its first word in the sentence.
        end: index after its last word.
    """

    label: str
    start: int
    end: int


class EntityScores(NamedTuple):
    """Precision, recall and F1 of entities.

    Attributes:
        n: number of entities in the reference tags.
        precision: fraction of the predicted entities that are correct.
        recall: fraction of the reference entities that are predicted.
        f1: harmonic mean of precision and recall.
    """

    n: int
    precision: float
    recall: float
    f1: float


def scheme_of(tags: Iterable[str]) -> Scheme:
    """Infer the tagging scheme of tags. The tags mark entities if every tag other than O begins with B-, I-, E- or S-.

    >>> scheme_of(["O", "B-PER", "I-PER"]), scheme_of(["O", "S-PER"]), scheme_of(["NOUN", "VERB"])
    ('iob', 'iobes', 'plain')
    """
    used = set(tags) - {OUTSIDE}
    if not used or not all(map(_ENTITY_TAG.fullmatch, used)):
        return "plain"
    return "iobes" if any(tag[0] in "ES" for tag in used) else "iob"


def unexpected_tag(tags: Iterable[str]) -> str | None:
    """Return a tag that does not mark entities although other tags do, or None if there is no such tag.

    If any tag begins with B-, every tag other than O must begin with B-, I-, E- or S-.
    """
    used = sorted(set(tags) - {OUTSIDE})
    plain = [tag for tag in used if not _ENTITY_TAG.fullmatch(tag)]
    return plain[0] if plain and any(tag.startswith("B-") for tag in used) else None


def complete_tags(tags: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Return all tags that a tagging scheme has for the labels in use, sorted. Plain tags are only sorted.

    >>> complete_tags(["O", "B-PER"], "iob")
    ('B-PER', 'I-PER', 'O')
    """
    used = set(tags)
    if scheme != "plain":
        prefixes = "BI" if scheme == "iob" else "BIES"
        used = {f"{prefix}-{tag[2:]}" for tag in used - {OUTSIDE} for prefix in prefixes} | {OUTSIDE}
    return tuple(sorted(used))


def entities_of(tags: Sequence[str]) -> list[Entity]:
    """Return the entities that the tags of a sentence mark. Inconsistent tags are interpreted as by the CoNLL 2000 scorer.

    An entity starts at every B and S tag, at a tag after E, S or O, and where the label changes.

    >>> entities_of(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [Entity(label='PER', start=0, end=2), Entity(label='LOC', start=3, end=4), Entity(label='LOC', start=4, end=5)]
    """
    found = list[Entity]()
    for index, (before, tag) in enumerate(pairwise((OUTSIDE, *tags))):
        if tag != OUTSIDE:
            start = index if starts_entity(before, tag) else found.pop().start
            found.append(Entity(tag[2:], start, index + 1))
    return found


def starts_entity(before: str, tag: str) -> bool:
    """Return whether an entity starts at ``tag``, which must not be O, if the tag of the previous word is ``before``."""
    return tag[0] in "BS" or before[0] in "ESO" or before[2:] != tag[2:]


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Convert IOB1 tags to IOB2, in which every entity starts with B. Tags in IOB2 are returned unchanged.

    >>> to_iob2(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    ['B-PER', 'I-PER', 'O', 'B-LOC', 'B-LOC']
    """
    return [f"B{tag[1:]}" if tag != OUTSIDE and starts_entity(before, tag) else tag for before, tag in pairwise((OUTSIDE, *tags))]


def first_invalid(tags: Sequence[str]) -> int | None:
    """Return the index of the first tag that violates IOBES, or None if all tags are valid.

    If the sentence ends inside an entity, the index is the number of tags.

    >>> first_invalid(["B-PER", "E-PER", "O", "S-LOC"]), first_invalid(["B-PER", "O"]), first_invalid(["I-PER", "E-PER"])
    (None, 1, 0)
    """
    for index, (before, tag) in enumerate(pairwise((OUTSIDE, *tags, OUTSIDE))):
        is_open = before[0] in "BI"
        if is_open != (tag[0] in "IE") or (is_open and before[2:] != tag[2:]):
            return index
    return None


def entity_scores(expected: Iterable[Sequence[str]], found: Iterable[Sequence[str]]) -> tuple[EntityScores, dict[str, EntityScores]]:
    """Compute precision, recall and F1 of entities, micro-averaged over all labels and for each label.

    A predicted entity is correct if its label, start and end are those of a reference entity. F1 = 2 P R / (P + R) with the precision
    P = correct / predicted and the recall R = correct / reference (Tjong Kim Sang & De Meulder 2003), where 0 / 0 is 0.

    Args:
        expected: reference tags of each sentence.
        found: predicted tags of the same sentences.
    """
    n_expected, n_found, n_right = Counter[str](), Counter[str](), Counter[str]()
    for known, answered in zip(expected, found, strict=True):
        a, b = set(entities_of(known)), set(entities_of(answered))
        n_expected.update(entity.label for entity in a)
        n_found.update(entity.label for entity in b)
        n_right.update(entity.label for entity in a & b)
    per_label = {label: _scores(n_right[label], n_found[label], n_expected[label]) for label in sorted(n_expected | n_found)}
    return _scores(n_right.total(), n_found.total(), n_expected.total()), per_label


def _scores(right: int, found: int, expected: int) -> EntityScores:
    return EntityScores(expected, right / max(found, 1), right / max(expected, 1), 2 * right / max(found + expected, 1))
