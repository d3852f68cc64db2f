"""Class names of labeled data and their indices."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from transom.errors import DataError
from transom.files.limits import MAX_CLASS_NAMES_BYTES, MAX_CLASSES

LABEL_SEPARATOR = "|"
"""Separator between several labels of a text."""

LabelSets = NDArray[np.uint8]
"""A row per sample, a column per class: 1 if the sample has the label, 0 otherwise."""


@runtime_checkable
class SampleSource(Protocol):
    """Interface of a labeled data set for error messages."""

    @property
    def name(self) -> str:
        """Origin of the samples, for messages."""
        ...

    def describe_sample(self, sample: int) -> str:
        """Return the origin of a sample as text, for messages."""
        ...


MIN_SAMPLES_TO_JUDGE = 20
"""Number of samples from which on more classes than half of it are taken for a mistake."""


def collect_classes(labels: Sequence[str], where: SampleSource, known_classes: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the classes of training samples in sorted order, or the known classes if there are any.

    Args:
        labels: class of each training sample.
        where: the data set, for messages.
        known_classes: classes of the model that is fine-tuned. Empty if a new model is trained.

    Raises:
        DataError: there are fewer than two classes or implausibly many, most have a single sample, or the class of a sample is not among
            the known classes.
    """
    if known_classes:
        encode_labels(labels, known_classes, where)
        return known_classes
    found = tuple(sorted(set(labels)))
    if not 2 <= len(found) <= MAX_CLASSES:
        shown = f" ({found[0][:50]!r}{' ...' if len(found) > 1 else ''})" if found else ""
        raise DataError(
            f"{where.name}: expected 2 to {MAX_CLASSES:,} classes, found {len(found):,}{shown}; check that the label field is the class"
        )
    if len(labels) >= MIN_SAMPLES_TO_JUDGE and len(found) > len(labels) / 2:
        raise DataError(
            f"{where.name}: expected classes of several samples each, found {len(found):,} classes among {len(labels):,} samples, such as"
            f" {found[0][:50]!r} and {found[-1][:50]!r}; choose the column of the class with --label-field"
        )
    reject_long_names(found, where.name, "classes")
    return found


def reject_long_names(classes: Sequence[str], where: str, noun: str) -> None:
    """Raise an error if the names of the classes are implausibly long.

    Args:
        classes: names of the classes.
        where: origin of the data, for messages.
        noun: plural noun for the classes, for messages.

    Raises:
        DataError: the names together have more bytes than a run folder may store.
    """
    if (size := sum(len(name.encode()) for name in classes)) > MAX_CLASS_NAMES_BYTES:
        longest = max(classes, key=len)
        raise DataError(
            f"{where}: expected {noun} whose names have at most {MAX_CLASS_NAMES_BYTES:,} bytes together, found {size:,}; the longest is"
            f" {longest[:20]!r} and {max(0, len(longest) - 20):,} characters more; check that these are the {noun}"
        )


def encode_labels(labels: Sequence[str], classes: Sequence[str], where: SampleSource) -> list[int]:
    """Return the class index of each sample.

    Args:
        labels: class of each sample.
        classes: names of the classes by index.
        where: the data set, for messages.

    Raises:
        DataError: the class of a sample is not among ``classes``.
    """
    numbers = {label: number for number, label in enumerate(classes)}
    for sample, label in enumerate(labels):
        if label not in numbers:
            raise _unknown_class(label, classes, where, sample)
    return [numbers[label] for label in labels]


def split_labels(joined: str) -> list[str]:
    """Return the labels of a text, which ``|`` separates, in the order of their names; each once.

    >>> split_labels("drama | comedy|drama"), split_labels("")
    (['comedy', 'drama'], [])
    """
    return sorted({label.strip() for label in joined.split(LABEL_SEPARATOR)} - {""})


def encode_label_sets(labels: Sequence[str], classes: Sequence[str], where: SampleSource) -> LabelSets:
    """Return, for each sample and class, 1 if the sample has this label and 0 otherwise.

    Args:
        labels: labels of each sample, separated by ``|``.
        classes: names of the classes by index.
        where: the data set, for messages.

    Raises:
        DataError: a label is not among ``classes``.
    """
    sets, numbers = np.zeros((len(labels), len(classes)), np.uint8), {label: number for number, label in enumerate(classes)}
    for sample, joined in enumerate(labels):
        for label in split_labels(joined):
            if label not in numbers:
                raise _unknown_class(label, classes, where, sample)
            sets[sample, numbers[label]] = 1
    return sets


def _unknown_class(label: str, classes: Sequence[str], where: SampleSource, sample: int) -> DataError:
    shown = ", ".join(map(repr, classes[:10])) + (", ..." if len(classes) > 10 else "")
    return DataError(
        f"{where.describe_sample(sample)}: expected one of the classes {shown}, found {label[:50]!r}; correct or remove the sample"
    )


def spread_over_classes(labels: Sequence[str], keys: Sequence[str], n: int) -> list[int]:
    """Return the indices of up to ``n`` different samples, as evenly distributed over the classes as possible.

    >>> spread_over_classes(["a", "a", "a", "b"], ["same", "same", "other", "text"], 3)
    [0, 2, 3]

    Args:
        labels: class of each sample.
        keys: text or hash of each sample; of samples with equal keys only the first is returned.
        n: maximum number of samples.
    """
    ranked, n_of_class, seen = list[tuple[int, int]](), dict[str, int](), set[str]()
    for sample, (label, key) in enumerate(zip(labels, keys, strict=True)):
        if key not in seen:
            seen.add(key)
            ranked.append((n_of_class.get(label, 0), sample))
            n_of_class[label] = n_of_class.get(label, 0) + 1
    return sorted(sample for _, sample in sorted(ranked)[:n])
