"""Byte-pair encoding: subwords learned from text, with a fallback to bytes for unseen characters."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from transom.data.tokenizer.merges import MergeDropout
from transom.data.tokenizer.special import EOS, NAMES, PAD, SOS
from transom.errors import CheckpointError, ConfigError
from transom.files.limits import MAX_SYMBOL_CHARACTERS

WORDS = r" ?[\p{L}\p{M}]{1,64}| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]|\s+(?!\S)|\s"
"""Pre-tokenization pattern; no merge crosses its matches: letters with the preceding space, one digit, one other character, or a run of
whitespace.

Punctuation marks stand alone, so no symbol of several characters can read ``<0x80>`` or ``[EOS]``. The limit of 64 letters bounds the work
per word.
"""

_LEAST_SEEN = 2
_SPECIAL = [NAMES[PAD], NAMES[SOS], NAMES[EOS]]
_FIRST = [*_SPECIAL, *map(chr, range(128)), *(f"<0x{byte:02X}>" for byte in range(128, 256))]
LEAST_SIZE = len(_FIRST)
"""Size of the base vocabulary: the special tokens, the 128 ASCII characters, and the other 128 bytes of UTF-8."""


class BytePairs:
    """Byte-pair encoding (Sennrich et al. 2016): a vocabulary and a ranked list of merges.

    A space is prepended to each text, so that a word has the same tokens at the start of a sentence and within it. A character without a
    symbol of its own is encoded as UTF-8 bytes. No character is unknown, and decoding restores every text exactly.
    """

    kind = "bpe"

    def __init__(self, characters: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
        """Assign token ids in this order: special tokens, ASCII, bytes, characters, merged pairs.

        Args:
            characters: non-ASCII characters with a symbol of their own.
            merges: pairs of earlier symbols, highest priority first.

        Raises:
            CheckpointError: the lists cannot have come from training.
        """
        self._characters, self._merges = list(characters), list(merges)
        tokens = {symbol: token for token, symbol in enumerate(_FIRST)}
        for character in characters:
            if len(character) != 1 or character in tokens:
                raise CheckpointError(f"expected distinct non-ASCII characters, found {character!r}")
            tokens[character] = len(tokens)
        known = set(tokens) - set(_SPECIAL) - set(_FIRST[len(_SPECIAL) + 128 :])
        for rank, (left, right) in enumerate(merges, 1):
            if left not in known or right not in known:
                raise CheckpointError(f"expected merges of earlier symbols, found {left!r:.80} + {right!r:.80} as number {rank}")
            if len(left) + len(right) > MAX_SYMBOL_CHARACTERS:
                raise CheckpointError(
                    f"expected symbols of at most {MAX_SYMBOL_CHARACTERS:,} characters, found {len(left) + len(right):,} in merge {rank}"
                )
            known.add(left + right)
            tokens.setdefault(left + right, len(tokens))
        self.symbols = list(tokens)
        self.pieces = [symbol.encode() for symbol in self.symbols]
        self.pieces[:LEAST_SIZE] = [*(b"" for _ in _SPECIAL), *(bytes([byte]) for byte in range(256))]
        ranks = {(tokens[left], tokens[right]): (rank, tokens[left + right]) for rank, (left, right) in enumerate(merges)}
        if len(ranks) < len(merges):
            raise CheckpointError(f"expected distinct merges, found {len(merges) - len(ranks):,} duplicates")
        self._library = _library(models.BPE(tokens, self._merges, byte_fallback=True))
        self._dropout = MergeDropout(ranks, self._split, self._spell)

    @classmethod
    def learn(cls, texts: Iterable[str], vocab_size: int) -> "BytePairs":
        """Learn characters and merges; characters and pairs that occur only once are ignored.

        Args:
            texts: sentences.
            vocab_size: maximum vocabulary size; non-ASCII characters, most frequent first, use at most half of the entries beyond the base
                vocabulary.

        Raises:
            ConfigError: the vocabulary size is smaller than the base vocabulary.
        """
        if vocab_size < LEAST_SIZE:
            raise ConfigError(
                f"tokenizer.vocab_size: expected at least {LEAST_SIZE} for kind 'bpe' (256 bytes and"
                f" {len(_SPECIAL)} special tokens), found {vocab_size}; raise it, or choose kind 'char'"
            )
        texts = [" " + text for text in texts if text]
        seen = Counter[str]()
        for text in texts:
            seen.update(text)
        beyond = sorted((c for c, count in seen.items() if ord(c) > 127 and count >= _LEAST_SEEN), key=lambda c: (-seen[c], c))
        characters = sorted(beyond[: (vocab_size - LEAST_SIZE) // 2])
        alphabet = [*map(chr, range(128)), *characters]
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - LEAST_SIZE + 128,
            min_frequency=_LEAST_SEEN,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            max_token_length=MAX_SYMBOL_CHARACTERS,
            show_progress=False,
        )
        library = _library(models.BPE())
        library.train_from_iterator(texts, trainer, length=len(texts))
        learned = json.loads(library.to_str())["model"]["merges"]
        return cls(characters, [(left, right) for left, right in learned])

    @classmethod
    def from_dict(cls, value: dict[str, object]) -> "BytePairs":
        """Rebuild the encoding from the result of ``to_dict``.

        Raises:
            CheckpointError: the value has another form.
        """
        characters, merges = value.get("characters"), value.get("merges")
        if not isinstance(characters, list) or not all(isinstance(c, str) for c in characters):
            raise CheckpointError("expected a list of characters")
        if not isinstance(merges, list) or not all(
            isinstance(m, list) and len(m) == 2 and all(isinstance(s, str) for s in m) for m in merges
        ):
            raise CheckpointError("expected a list of merges, each of two symbols")
        return cls(characters, [(left, right) for left, right in merges])

    def to_dict(self) -> dict[str, object]:
        """Return the state of the encoding as JSON values."""
        return {"characters": self._characters, "merges": [list(merge) for merge in self._merges]}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts."""
        encodings = self._library.encode_batch_fast([text and " " + text for text in texts])
        return [encoding.ids for encoding in encodings]

    def encode_with_dropout(self, texts: Sequence[str], p: float, key: tuple[int, ...], samples: Sequence[int]) -> list[list[int]]:
        """Return the token ids of texts under BPE-dropout, each text with random numbers of its own; see ``MergeDropout``."""
        return [self._dropout.encode(text and " " + text, p, (*key, sample)) for text, sample in zip(texts, samples, strict=True)]

    def join(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids; invalid UTF-8, which only a model can generate, becomes U+FFFD."""
        return b"".join(map(self.pieces.__getitem__, tokens)).decode(errors="replace").removeprefix(" ")

    def _split(self, text: str) -> list[str]:
        return [word for word, _ in self._library.pre_tokenizer.pre_tokenize_str(text)]

    def _spell(self, word: str) -> list[int]:
        tokens = []
        for character in word:
            token = self._library.token_to_id(character)
            tokens += [token] if token is not None else [len(_SPECIAL) + byte for byte in character.encode()]
        return tokens


def _library(model: models.Model) -> tokenizers.Tokenizer:
    """Build the library's tokenizer without special tokens, which it would otherwise recognize inside texts."""
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated")
    return library
