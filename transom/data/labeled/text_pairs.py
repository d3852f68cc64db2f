"""Texts and pairs of texts that an encoder reads: tokenization, truncation and special tokens (Devlin et al. 2019, section 3)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from transom.data.batch import PaddedSequences
from transom.data.pairs.loader import encode
from transom.data.tokenizer.special_tokens import SpecialTokens
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError, DataError

Text = str | tuple[str, str]
"""A text, or a pair of texts that the model reads in one sequence, such as a premise and a hypothesis."""


@dataclass(frozen=True)
class TokenPair:
    """Token ids of both texts of a pair, without special tokens; iteration and length are over both."""

    first: Sequence[int]
    second: Sequence[int]

    def __iter__(self) -> Iterator[int]:
        return chain(self.first, self.second)

    def __len__(self) -> int:
        return len(self.first) + len(self.second)


TokenRow = Sequence[int] | TokenPair
"""Token ids of a text or of a pair of texts, without special tokens."""


def is_pair(value: object) -> bool:
    """Return whether a value is a pair of texts: a tuple or list of two strings."""
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(each, str) for each in value)


def join_pair(text: Text) -> str:
    """Return a text, or both texts of a pair separated by ``[SEP]`` as in the paper, for messages and as a key."""
    return text if isinstance(text, str) else " [SEP] ".join(text)


def encode_texts(tokenizer: Tokenizer, texts: Sequence[Text]) -> list[TokenRow]:
    """Tokenize texts and pairs of texts.

    Raises:
        DataError: an item is neither a text nor a pair of texts.
    """
    for number, text in enumerate(texts, 1):
        if not (isinstance(text, str) or is_pair(text)):
            raise DataError(f"text {number}: expected a text or a pair (first, second) of texts, found {text!r:.60}; correct it")
    firsts = encode(tokenizer, [text if isinstance(text, str) else text[0] for text in texts])
    seconds = iter(encode(tokenizer, [text[1] for text in texts if not isinstance(text, str)]))
    return [first if isinstance(text, str) else TokenPair(first, next(seconds)) for text, first in zip(texts, firsts, strict=True)]


def n_added_tokens(row: TokenRow, special: SpecialTokens) -> int:
    """Return the number of special tokens to reserve for a text or a pair."""
    return special.template.n_added + len(special.template.separator) if isinstance(row, TokenPair) else special.n_added


def n_tokens(row: TokenRow, special: SpecialTokens) -> int:
    """Return the number of tokens of a text or a pair, special tokens included."""
    return len(row) + n_added_tokens(row, special)


def truncate(row: TokenRow, max_seq_len: int, special: SpecialTokens) -> TokenRow:
    """Keep the first tokens of a text, or of both texts of a pair, so that ``max_seq_len`` tokens are left, special tokens included.

    Tokens are dropped from the longer text of a pair until both are equally long, and then from both in turn (``longest_first`` of the
    transformers library). The text that was the longer one keeps an odd token; the second one if both were equally long.

    Raises:
        ConfigError: the context window has no room for a token of each text of a pair.
    """
    n = max_seq_len - n_added_tokens(row, special)
    if not isinstance(row, TokenPair):
        return row[:n]
    if len(row) <= n:
        return row
    if n < 2:
        raise ConfigError(f"model.max_seq_len: expected at least {max_seq_len - n + 2} for pairs of texts, found {max_seq_len}; raise it")
    n_shorter = min(len(row.first), len(row.second), n // 2)
    n_first = n - n_shorter if len(row.first) > len(row.second) else n_shorter
    return TokenPair(row.first[:n_first], row.second[: n - n_first])


def surround(rows: Sequence[TokenRow], special: SpecialTokens, n_token_types: int) -> PaddedSequences:
    """Put the special tokens around texts, and around and between the texts of pairs, and pad the rows.

    Args:
        rows: token ids of each text or pair, without special tokens.
        special: special tokens of the tokenizer, whose template has the token type of second texts.
        n_token_types: number of token types of the model; with fewer than two, it reads pairs without types.
    """
    ids, types = list[list[int]](), list[list[int]]()
    for row in rows:
        pair = special.template.surround_pair(row.first, row.second) if isinstance(row, TokenPair) else ([], [])
        ids.append(pair[0] or special.text([*row]))
        types.append(pair[1] or [0] * len(ids[-1]))
    padded = PaddedSequences.pad(ids, special.padding)
    return replace(padded, token_types=PaddedSequences.pad(types, 0).tokens) if n_token_types > 1 and any(map(any, types)) else padded
