"""The classes of labelled samples, and their numbers."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from transom.errors import DataError
from transom.files.limits import MAX_CLASS_NAMES_BYTES, MAX_CLASSES


@runtime_checkable
class Samples(Protocol):
    """What has a class each."""

    @property
    def name(self) -> str:
        """Where they come from."""
        ...

    def place(self, sample: int) -> str:
        """Name a sample, for people."""
        ...


def classes_of(labels: Sequence[str], where: Samples, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Give the classes of training samples in their order as text, or those that are known already.

    Raises:
        DataError: there is one class only, or so many that they are something else, or one that is not known.
    """
    if known:
        numbered(labels, known, where)
        return known
    found = tuple(sorted(set(labels)))
    if not 2 <= len(found) <= MAX_CLASSES:
        shown = f" ({found[0][:50]!r}{' ...' if len(found) > 1 else ''})" if found else ""
        raise DataError(f"{where.name}: expected 2 to {MAX_CLASSES:,} classes, found {len(found):,}{shown}; is that the class?")
    refuse_long_names(found, where.name, "classes")
    return found


def refuse_long_names(classes: Sequence[str], where: str, noun: str) -> None:
    """Refuse classes whose names are so long that they must be something else.

    Args:
        classes: their names.
        where: the data that have them, for people.
        noun: what people call them.

    Raises:
        DataError: a run could not hold them.
    """
    if (size := sum(len(name.encode()) for name in classes)) > MAX_CLASS_NAMES_BYTES:
        longest = max(classes, key=len)
        raise DataError(
            f"{where}: expected {noun} whose names have at most {MAX_CLASS_NAMES_BYTES:,} bytes together, found {size:,}; the longest is"
            f" {longest[:20]!r} and {max(0, len(longest) - 20):,} characters more: are those the {noun}?"
        )


def numbered(labels: Sequence[str], classes: Sequence[str], where: Samples) -> list[int]:
    """Give the number of each sample's class.

    Raises:
        DataError: it is none of the model's.
    """
    numbers = {label: number for number, label in enumerate(classes)}
    for sample, label in enumerate(labels):
        if label not in numbers:
            shown = ", ".join(map(repr, classes[:10])) + (", ..." if len(classes) > 10 else "")
            raise DataError(f"{where.place(sample)}: expected one of the classes {shown}, found {label[:50]!r}")
    return [numbers[label] for label in labels]
