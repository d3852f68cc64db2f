"""Closed vocabularies of characters or words, which encode all other characters or words as [UNK]."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import ClassVar

from transom.data.tokenizer.special_tokens import CLOSED_TOKENS, EOS, PAD, SOS, TOKEN_NAMES, UNK
from transom.errors import CheckpointError, ConfigError

_SPECIAL_TOKENS = [TOKEN_NAMES[PAD], TOKEN_NAMES[SOS], TOKEN_NAMES[EOS], TOKEN_NAMES[UNK]]


class ClosedVocabulary(ABC):
    """Base of vocabularies with a fixed set of units, such as characters or words.

    Any other unit is encoded as [UNK], which is decoded as U+FFFD.

    Attributes:
        kind: value of ``tokenizer.kind`` in a recipe.
        special_tokens: ids of the special tokens, and the templates that use them.
        reserved: ids of further special tokens, of which there are none.
        unused: ids without a symbol, of which there are none.
        space_before_words: what precedes a word that is encoded alone as it would be within a sentence.
        spaces_in_tokens: True if the first token of a word contains the space before the word.
        symbols: symbol of each token id as text.
    """

    kind: ClassVar[str]
    special_tokens = CLOSED_TOKENS
    reserved, unused = frozenset[int](), ()
    space_before_words, spaces_in_tokens = " ", False

    def __init__(self, units: Sequence[str]) -> None:
        """Assign token ids to the special tokens and then to the units.

        Raises:
            CheckpointError: a unit occurs twice.
        """
        if len(set(units)) < len(units):
            raise CheckpointError("expected distinct units, found a duplicate")
        self._tokens = {unit: token for token, unit in enumerate(units, len(_SPECIAL_TOKENS))}
        self.symbols = [*_SPECIAL_TOKENS, *units]

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "ClosedVocabulary":
        """Build a vocabulary of the most frequent units of texts.

        Args:
            texts: sentences.
            vocab_size: maximum vocabulary size, including special tokens.

        Raises:
            ConfigError: ``vocab_size`` leaves room for the special tokens only, and for no character or word.
        """
        if vocab_size <= len(_SPECIAL_TOKENS):
            raise ConfigError(
                f"tokenizer.vocab_size: expected more than the {len(_SPECIAL_TOKENS)} special tokens, found {vocab_size}; raise it"
            )
        seen = Counter(unit for text in texts for unit in cls._units(text))
        return cls(sorted(seen, key=lambda unit: (-seen[unit], unit))[: vocab_size - len(_SPECIAL_TOKENS)])

    @classmethod
    def from_dict(cls, value: dict[str, object]) -> "ClosedVocabulary":
        """Rebuild the vocabulary from the result of ``to_dict``.

        Raises:
            CheckpointError: the value has another form.
        """
        units = value.get("units")
        if not isinstance(units, list) or not all(isinstance(unit, str) and cls._units(unit) == [unit] for unit in units):
            raise CheckpointError("expected a list of units, one character or word each")
        return cls(units)

    def to_dict(self) -> dict[str, object]:
        """Return the state of the vocabulary as JSON values."""
        return {"units": self.symbols[len(_SPECIAL_TOKENS) :]}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        return [[self._tokens.get(unit, UNK) for unit in self._units(text)] for text in texts]

    def count_part_tokens(self, parts: Sequence[str], tokens: Sequence[int]) -> list[int]:
        """Count the tokens of a text that start in each of its consecutive parts; see ``Tokenizer.count_part_tokens``."""
        return [len(self._units(part)) for part in parts]

    def encode_with_dropout(self, texts: Sequence[str], p: float, key: tuple[int, ...], samples: Sequence[int]) -> list[list[int]]:
        """Raise an error, because a closed vocabulary has no merges that BPE-dropout could skip.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("tokenizer.bpe_dropout: expected kind 'bpe', found a vocabulary without merges; set tokenizer.bpe_dropout = 0")

    def starts_word(self, token: int) -> bool:
        """Return whether a token starts a word."""
        return self._separator() == " " or self.symbols[token][0].isspace()

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids."""
        return self._separator().join("\N{REPLACEMENT CHARACTER}" if token == UNK else self.symbols[token] for token in tokens)

    @staticmethod
    @abstractmethod
    def _units(text: str) -> list[str]:
        """Split a text into units."""

    @staticmethod
    @abstractmethod
    def _separator() -> str:
        """Return the string that separates two units in a text."""


class CharacterVocabulary(ClosedVocabulary):
    """Vocabulary of characters (Unicode code points).

    Decoding restores a text of known characters exactly.
    """

    kind = "char"

    @staticmethod
    def _units(text: str) -> list[str]:
        return list(text)

    @staticmethod
    def _separator() -> str:
        return ""


class WordVocabulary(ClosedVocabulary):
    """Vocabulary of whitespace-separated words.

    Decoding restores the known words of a text, with single spaces between words.
    """

    kind = "whitespace"

    @staticmethod
    def _units(text: str) -> list[str]:
        return text.split()

    @staticmethod
    def _separator() -> str:
        return " "
