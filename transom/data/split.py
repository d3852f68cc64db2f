"""The parts of a run's data, and which of them are set apart: a choice by hash, so that neither order nor other data matter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from transom.config.data import Data, Language
from transom.errors import DataError


@runtime_checkable
class Divisible(Protocol):
    """Data of which some can be taken."""

    @property
    def name(self) -> str:
        """Where they come from, for people."""
        ...

    def __len__(self) -> int:
        """Count them."""
        ...

    def take(self, samples: list[int], name: str) -> Self:
        """Give some of them."""
        ...


Part = TypeVar("Part", bound=Divisible)


@dataclass(frozen=True)
class Splits(Generic[Part]):
    """The data to learn from, to choose by, and to report on where there are some."""

    train: Part
    valid: Part
    test: Part | None = None

    @property
    def parts(self) -> dict[str, Part]:
        """All that there are, by their names."""
        return {name: part for name, part in (("train", self.train), ("valid", self.valid), ("test", self.test)) if part is not None}


def read_splits(data: Data | Language, read: Callable[[Any], Part], split: Callable[[Part], tuple[Part, Part]]) -> Splits[Part]:
    """Read the parts that a recipe names.

    Args:
        data: the recipe's; it names training data.
        read: reads the files of a part.
        split: splits validation data off, where the recipe names none.
    """
    train = read(data.train)
    train, valid = split(train) if data.valid is None else (train, read(data.valid))
    return Splits(train, valid, None if data.test is None else read(data.test))


def text_hash(text: str) -> int:
    """Give a text's place among all hashes, a whole number of 64 bits."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def least_share(texts: Sequence[str], share: float) -> list[int]:
    """Choose about a share of the texts by the size of their hashes.

    Equal texts are on one side. Where the share comes to no text or all, the one text with the smallest hash is taken.

    Args:
        texts: what to choose from, at least one.
        share: wanted part of them, from 0 to 1.

    Returns:
        The places of the chosen texts, in order; none where all texts are the same.
    """
    hashes = list(map(text_hash, texts))
    least, most = min(hashes), max(hashes)
    threshold = int(share * 2**64)
    if not least <= threshold < most:
        threshold = least
    return [] if least == most else [place for place, value in enumerate(hashes) if value <= threshold]


def split_off(data: Part, keys: Sequence[str], share: float, noun: str) -> tuple[Part, Part]:
    """Split validation data off, chosen by ``least_share`` of their keys: the same data are never on both sides.

    Args:
        data: all of them.
        keys: what the hash is of, one a sample.
        share: wanted part of them, from 0 to 1.
        noun: what they are, in the plural.

    Returns:
        The rest for training, and the validation data.

    Raises:
        DataError: there are not two different keys.
    """
    chosen = least_share(keys, share)
    if not chosen:
        raise DataError(f"{data.name}: too few different {noun} to split off any for validation; name data.valid or add {noun}")
    rest = sorted(set(range(len(data))).difference(chosen))
    return data.take(rest, data.name), data.take(chosen, f"{len(chosen)} of {len(data)} {noun} of {data.name}, split off by hash")
