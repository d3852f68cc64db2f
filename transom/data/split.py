"""Training, validation and test splits. Held-out data are selected by hash, independently of their order and of other data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from transom.config.data import Data, Language
from transom.errors import DataError


@runtime_checkable
class Divisible(Protocol):
    """A data set that can be split by sample indices."""

    @property
    def name(self) -> str:
        """Origin of the data, for messages."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def take(self, samples: list[int], name: str) -> Self:
        """Return the samples at these indices, as a data set of this name."""
        ...


Part = TypeVar("Part", bound=Divisible)


@dataclass(frozen=True)
class Splits(Generic[Part]):
    """The training, validation and optional test data."""

    train: Part
    valid: Part
    test: Part | None = None

    @property
    def parts(self) -> dict[str, Part]:
        """The existing splits by name."""
        return {name: part for name, part in (("train", self.train), ("valid", self.valid), ("test", self.test)) if part is not None}


def read_splits(data: Data | Language, read: Callable[[Any], Part], split: Callable[[Part], tuple[Part, Part]]) -> Splits[Part]:
    """Read the splits that a recipe names.

    Args:
        data: the recipe's data section, with training data.
        read: reads the files of a split.
        split: splits training data into training and validation data, for a recipe without validation data.
    """
    train = read(data.train)
    train, valid = split(train) if data.valid is None else (train, read(data.valid))
    return Splits(train, valid, None if data.test is None else read(data.test))


def text_hash(text: str) -> int:
    """Return the 64-bit BLAKE2b hash of a text as an integer."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def least_share(texts: Sequence[str], share: float) -> list[int]:
    """Select about a fraction of the texts: those with the smallest hashes.

    Equal texts are always on the same side. If the fraction would select no text or all texts, the text with the smallest hash is selected.

    Args:
        texts: at least one text.
        fraction: fraction of texts to select, from 0 to 1.

    Returns:
        The indices of the selected texts in ascending order; empty if all texts are equal.
    """
    hashes = list(map(text_hash, texts))
    least, most = min(hashes), max(hashes)
    threshold = int(share * 2**64)
    if not least <= threshold < most:
        threshold = least
    return [] if least == most else [place for place, value in enumerate(hashes) if value <= threshold]


def split_off(data: Part, keys: Sequence[str], share: float, noun: str) -> tuple[Part, Part]:
    """Hold out validation data by the hash of a key per sample: samples with equal keys are never on both sides.

    Args:
        data: all samples.
        keys: the key of each sample.
        fraction: fraction of the samples to hold out, from 0 to 1.
        noun: plural noun for the samples, for messages.

    Returns:
        The training data and the validation data.

    Raises:
        DataError: all keys are equal.
    """
    chosen = least_share(keys, share)
    if not chosen:
        raise DataError(
            f"{data.name}: expected at least two different {noun}, to split off validation data, found fewer; set data.valid or add {noun}"
        )
    rest = sorted(set(range(len(data))).difference(chosen))
    return data.take(rest, data.name), data.take(chosen, f"{len(chosen)} of {len(data)} {noun} of {data.name}, split off by hash")
