"""Training, validation and test splits.

A sample is held out by its hash, which depends neither on the order of the samples nor on other samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from transom.config.data import DataConfig, LanguageConfig
from transom.errors import DataError
from transom.files.message import phrase


@runtime_checkable
class SplittableData(Protocol):
    """A data set from which samples can be selected by their indices."""

    @property
    def name(self) -> str:
        """Origin of the data, for messages."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def select(self, samples: list[int], name: str) -> Self:
        """Return the samples at the given indices as a data set with the given name."""
        ...


SplittableT = TypeVar("SplittableT", bound=SplittableData)


@dataclass(frozen=True)
class Splits(Generic[SplittableT]):
    """Training data, validation data and optional test data."""

    train: SplittableT
    valid: SplittableT
    test: SplittableT | None = None

    @property
    def parts(self) -> dict[str, SplittableT]:
        """The splits by name, without the test split if there is no test data."""
        return {name: part for name, part in (("train", self.train), ("valid", self.valid), ("test", self.test)) if part is not None}


def read_splits(
    data: DataConfig | LanguageConfig, read: Callable[[Any], SplittableT], split: Callable[[SplittableT], tuple[SplittableT, SplittableT]]
) -> Splits[SplittableT]:
    """Read the training, validation and test data that a recipe names.

    Args:
        data: the recipe's data section, which must name training data.
        read: a function that reads the files of one split.
        split: a function that splits validation data off the training data. It is called if the recipe names no validation data.
    """
    train = read(data.train)
    train, valid = split(train) if data.valid is None else (train, read(data.valid))
    return Splits(train, valid, None if data.test is None else read(data.test))


def text_hash(text: str) -> int:
    """Return the 64-bit BLAKE2b hash of a text as an integer."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def smallest_hashes(texts: Sequence[str], fraction: float) -> list[int]:
    """Select approximately a fraction of the texts, namely those with the smallest hashes.

    Equal texts are either all selected or all left. If the fraction would select no text or all texts, only the text with the smallest hash
    is selected.

    Args:
        texts: the texts, of which there must be at least one.
        fraction: fraction of the texts to select, from 0 to 1.

    Returns:
        The indices of the selected texts in ascending order. The list is empty if all texts are equal.
    """
    hashes = list(map(text_hash, texts))
    smallest, largest = min(hashes), max(hashes)
    threshold = int(fraction * 2**64)
    if not smallest <= threshold < largest:
        threshold = smallest
    return [] if smallest == largest else [place for place, value in enumerate(hashes) if value <= threshold]


PLURALS = ("pairs", "texts", "images", "sounds", "sentences", "documents")
"""Plural nouns for samples that other languages have; those of a plugin stay English."""


def holdout(data: SplittableT, keys: Sequence[str], fraction: float, noun: str) -> tuple[SplittableT, SplittableT]:
    """Split samples into training and validation data by a hash of each sample's key.

    Samples with equal keys all go to the same split.

    Args:
        data: all samples.
        keys: key of each sample, such as its text.
        fraction: approximate fraction of the samples to hold out for validation, from 0 to 1.
        noun: plural noun for the samples, for messages.

    Returns:
        The training data and the validation data.

    Raises:
        DataError: all keys are equal.
    """
    chosen = smallest_hashes(keys, fraction)
    if not chosen:
        raise DataError(
            f"{data.name}: expected at least two different {noun}, to split off validation data, found fewer; set data.valid or add {noun}"
        )
    rest = sorted(set(range(len(data))).difference(chosen))
    held_out = phrase(
        "data.held_out",
        "{number} of {total} {noun} of {name}, held out",
        number=str(len(chosen)),
        total=str(len(data)),
        noun=phrase(f"data.plural.{noun}", noun) if noun in PLURALS else noun,
        name=data.name,
    )
    return data.select(rest, data.name), data.select(chosen, held_out)
