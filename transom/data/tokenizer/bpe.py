"""Byte-pair encoding, whose subwords are learned from text, with a fallback to bytes for unseen characters."""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from transom.data.tokenizer.bpe_dropout import MergeDropout
from transom.data.tokenizer.special_tokens import EOS, OWN_TOKENS, PAD, SOS, TOKEN_NAMES
from transom.errors import CheckpointError, ConfigError
from transom.files.limits import MAX_TOKEN_CHARACTERS

PRETOKEN_PATTERN = r" ?[\p{L}\p{M}]{1,64}| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]|\s+(?!\S)|\s"
"""Pre-tokenization pattern, which splits a text into pieces.

A piece is a run of letters, a digit, another single character, or a run of whitespace. Letters, digits and single characters include the
space before them. No merge crosses the border between two pieces. Because punctuation marks stand alone, no symbol of several characters
can equal the printed form of a byte (``<0x80>``) or of a special token (``[EOS]``). The limit of 64 letters bounds the work per piece.
"""

_MIN_FREQUENCY = 2
_SPECIAL_TOKENS = [TOKEN_NAMES[PAD], TOKEN_NAMES[SOS], TOKEN_NAMES[EOS]]
_BASE_SYMBOLS = [*_SPECIAL_TOKENS, *map(chr, range(128)), *(f"<0x{byte:02X}>" for byte in range(128, 256))]
MIN_VOCAB_SIZE = len(_BASE_SYMBOLS)
"""Size of the base vocabulary, which consists of the special tokens, the 128 ASCII characters and the other 128 bytes."""


class BytePairEncoding:
    """Byte-pair encoding (Sennrich et al. 2016), which consists of a vocabulary and a ranked list of merges.

    A space is prepended to each non-empty text, so that a word has the same tokens at the start of a sentence and within a sentence. A
    character without a symbol of its own is encoded as its UTF-8 bytes. No character is unknown, and decoding restores every text exactly.

    Attributes:
        kind: value of ``tokenizer.kind`` in a recipe.
        special_tokens: ids of the special tokens, and the templates that use them.
        reserved: ids of further special tokens, of which there are none.
        unused: ids without a symbol, of which there are none.
        space_before_words: what precedes a word that is encoded alone as it would be within a sentence.
        spaces_in_tokens: True if the first token of a word contains the space before the word.
        symbols: symbol of each token id as text.
        symbol_bytes: UTF-8 bytes that each token id stands for. Empty for special tokens.
    """

    kind = "bpe"
    special_tokens = OWN_TOKENS
    reserved, unused = frozenset[int](), ()
    space_before_words, spaces_in_tokens = "", True  # encoding adds the space

    def __init__(self, characters: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
        """Assign token ids to the special tokens, ASCII characters, other bytes, other characters and merged symbols, in this order.

        Args:
            characters: non-ASCII characters with a symbol of their own.
            merges: pairs of symbols to merge, by descending priority. Each symbol is a character or the result of an earlier merge.

        Raises:
            CheckpointError: the characters or merges are invalid.
        """
        self._characters, self._merges = list(characters), list(merges)
        tokens = {symbol: token for token, symbol in enumerate(_BASE_SYMBOLS)}
        for character in characters:
            if len(character) != 1 or character in tokens:
                raise CheckpointError(f"expected distinct non-ASCII characters, found {character!r}")
            tokens[character] = len(tokens)
        known = set(tokens) - set(_SPECIAL_TOKENS) - set(_BASE_SYMBOLS[len(_SPECIAL_TOKENS) + 128 :])
        for rank, (left, right) in enumerate(merges, 1):
            if left not in known or right not in known:
                raise CheckpointError(f"expected merges of earlier symbols, found {left!r:.80} + {right!r:.80} as number {rank}")
            if len(left) + len(right) > MAX_TOKEN_CHARACTERS:
                raise CheckpointError(
                    f"expected symbols of at most {MAX_TOKEN_CHARACTERS:,} characters, found {len(left) + len(right):,} in merge {rank}"
                )
            known.add(left + right)
            tokens.setdefault(left + right, len(tokens))
        self.symbols = list(tokens)
        self.symbol_bytes = [symbol.encode() for symbol in self.symbols]
        self.symbol_bytes[:MIN_VOCAB_SIZE] = [*(b"" for _ in _SPECIAL_TOKENS), *(bytes([byte]) for byte in range(256))]
        ranks = {(tokens[left], tokens[right]): (rank, tokens[left + right]) for rank, (left, right) in enumerate(merges)}
        if len(ranks) < len(merges):
            raise CheckpointError(f"expected distinct merges, found {len(merges) - len(ranks):,} duplicates")
        self._library = _build_library(models.BPE(tokens, self._merges, byte_fallback=True))
        self._dropout = MergeDropout(ranks, self._pretokenize, self._base_tokens)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "BytePairEncoding":
        """Learn a vocabulary of characters and merges from texts.

        Non-ASCII characters and pairs of symbols that occur only once are ignored.

        Args:
            texts: sentences.
            vocab_size: maximum vocabulary size. The most frequent non-ASCII characters get at most half of the entries beyond the base
                vocabulary. The other entries remain for merged symbols.

        Raises:
            ConfigError: the vocabulary size is smaller than the base vocabulary.
        """
        if vocab_size < MIN_VOCAB_SIZE:
            raise ConfigError(
                f"tokenizer.vocab_size: expected at least {MIN_VOCAB_SIZE} for kind 'bpe' (256 bytes and"
                f" {len(_SPECIAL_TOKENS)} special tokens), found {vocab_size}; raise it, or choose kind 'char'"
            )
        texts = [" " + text for text in texts if text]
        seen = Counter[str]()
        for text in texts:
            seen.update(text)
        beyond = sorted((c for c, count in seen.items() if ord(c) > 127 and count >= _MIN_FREQUENCY), key=lambda c: (-seen[c], c))
        characters = sorted(beyond[: (vocab_size - MIN_VOCAB_SIZE) // 2])
        alphabet = [*map(chr, range(128)), *characters]
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - MIN_VOCAB_SIZE + 128,
            min_frequency=_MIN_FREQUENCY,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            max_token_length=MAX_TOKEN_CHARACTERS,
            show_progress=False,
        )
        library = _build_library(models.BPE())
        library.train_from_iterator(texts, trainer, length=len(texts))
        learned = json.loads(library.to_str())["model"]["merges"]
        return cls(characters, [(left, right) for left, right in learned])

    @classmethod
    def from_dict(cls, value: dict[str, object]) -> "BytePairEncoding":
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
        """Return the token ids of each text."""
        encodings = self._library.encode_batch_fast([text and " " + text for text in texts])
        return [encoding.ids for encoding in encodings]

    def count_part_tokens(self, parts: Sequence[str], tokens: Sequence[int]) -> list[int]:
        """Count the tokens of a text that start in each of its consecutive parts; see ``Tokenizer.count_part_tokens``."""
        ends, counts = list(accumulate(len(part.encode()) for part in parts)), [0] * len(parts)
        start = -1  # the first token starts with the space that encoding prepends
        for token in tokens:
            counts[bisect_right(ends, start)] += 1
            start += len(self.symbol_bytes[token])
        return counts

    def encode_with_dropout(self, texts: Sequence[str], p: float, key: tuple[int, ...], samples: Sequence[int]) -> list[list[int]]:
        """Return the token ids of each text under BPE-dropout; see ``MergeDropout``.

        Args:
            texts: sentences.
            p: probability of skipping a merge.
            key: integers such as seed, epoch and side.
            samples: index of each text in its data set. Key and index determine the random numbers of the text.
        """
        return [self._dropout.encode(text and " " + text, p, (*key, sample)) for text, sample in zip(texts, samples, strict=True)]

    def starts_word(self, token: int) -> bool:
        """Return whether a token starts a word."""
        return self.symbols[token][0].isspace()

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids.

        Tokens generated by a model may be invalid UTF-8, which is replaced by U+FFFD.
        """
        return b"".join(map(self.symbol_bytes.__getitem__, tokens)).decode(errors="replace").removeprefix(" ")

    def _pretokenize(self, text: str) -> list[str]:
        return [word for word, _ in self._library.pre_tokenizer.pre_tokenize_str(text)]

    def _base_tokens(self, word: str) -> list[int]:
        tokens = []
        for character in word:
            token = self._library.token_to_id(character)
            tokens += [token] if token is not None else [len(_SPECIAL_TOKENS) + byte for byte in character.encode()]
        return tokens


def _build_library(model: models.Model) -> tokenizers.Tokenizer:
    """Build a tokenizer of the ``tokenizers`` library.

    It has no special tokens, because the library would recognize their printed form inside texts.
    """
    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(PRETOKEN_PATTERN), "isolated")
    return library
