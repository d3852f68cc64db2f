"""Class names of labeled data and their indices."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from transom.errors import DataError
from transom.files.limits import MAX_CLASS_NAMES_BYTES, MAX_CLASSES


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


def collect_classes(labels: Sequence[str], where: SampleSource, known_classes: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the classes of training samples in sorted order, or the known classes if there are any.

    Args:
        labels: class of each training sample.
        where: the data set, for messages.
        known_classes: classes of the model that is fine-tuned. Empty if a new model is trained.

    Raises:
        DataError: there are fewer than two classes or implausibly many, or the class of a sample is not among the known classes.
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
            shown = ", ".join(map(repr, classes[:10])) + (", ..." if len(classes) > 10 else "")
            raise DataError(
                f"{where.describe_sample(sample)}: expected one of the classes {shown}, found {label[:50]!r}; correct or remove the sample"
            )
    return [numbers[label] for label in labels]
