"""Closed vocabularies: characters, or words between white space. What was not seen in training is unknown."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from transom.data.tokenizer.special import EOS, NAMES, PAD, SOS, UNK
from transom.errors import CheckpointError, ConfigError

_FIRST = [NAMES[PAD], NAMES[SOS], NAMES[EOS], NAMES[UNK]]


class Closed(ABC):
    """Units of text, each a symbol; all others are the unknown symbol, which is written as U+FFFD."""

    kind: ClassVar[str]

    def __init__(self, units: Sequence[str]) -> None:
        """Number the units behind the special symbols.

        Raises:
            CheckpointError: a unit occurs twice.
        """
        if len(set(units)) < len(units):
            raise CheckpointError("expected different units, found one twice")
        self._tokens = {unit: token for token, unit in enumerate(units, len(_FIRST))}
        self.symbols = [*_FIRST, *units]

    @classmethod
    def learn(cls, texts: Iterable[str], vocab_size: int) -> "Closed":
        """Take the most frequent units.

        Raises:
            ConfigError: the vocabulary has no room for a unit.
        """
        if vocab_size <= len(_FIRST):
            raise ConfigError(f"tokenizer.vocab_size: expected more than the {len(_FIRST)} special symbols, found {vocab_size}; raise it")
        seen = Counter(unit for text in texts for unit in cls._units(text))
        return cls(sorted(seen, key=lambda unit: (-seen[unit], unit))[: vocab_size - len(_FIRST)])

    @classmethod
    def from_dict(cls, value: dict[str, object]) -> "Closed":
        """Read what ``to_dict`` wrote.

        Raises:
            CheckpointError: it is something else.
        """
        units = value.get("units")
        if not isinstance(units, list) or not all(isinstance(unit, str) and cls._units(unit) == [unit] for unit in units):
            raise CheckpointError("expected a list of units, each of them one")
        return cls(units)

    def to_dict(self) -> dict[str, object]:
        """Give what makes this vocabulary, as JSON values."""
        return {"units": self.symbols[len(_FIRST) :]}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Look the units of texts up."""
        return [[self._tokens.get(unit, UNK) for unit in self._units(text)] for text in texts]

    def encode_with_dropout(self, texts: Sequence[str], p: float, key: tuple[int, ...], samples: Sequence[int]) -> list[list[int]]:
        """Refuse: there are no merges to skip.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("tokenizer.dropout: expected kind 'bpe', found a vocabulary without merges; set tokenizer.dropout = 0")

    def join(self, tokens: Iterable[int]) -> str:
        """Put units together again."""
        return self._between().join("\N{REPLACEMENT CHARACTER}" if token == UNK else self.symbols[token] for token in tokens)

    @staticmethod
    @abstractmethod
    def _units(text: str) -> list[str]:
        """Cut a text into units."""

    @staticmethod
    @abstractmethod
    def _between() -> str:
        """Say what stands between two units."""


class Characters(Closed):
    """Each character (Unicode code point) is a symbol; a text of seen characters comes back exactly."""

    kind = "char"

    @staticmethod
    def _units(text: str) -> list[str]:
        return list(text)

    @staticmethod
    def _between() -> str:
        return ""


class Words(Closed):
    """What stands between white space is a symbol; seen words with single spaces between them come back exactly."""

    kind = "whitespace"

    @staticmethod
    def _units(text: str) -> list[str]:
        return text.split()

    @staticmethod
    def _between() -> str:
        return " "
