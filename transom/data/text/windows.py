"""Batches of fixed-length windows of a token stream, which is cut into windows at a new offset in each epoch."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from transom.data.batch import Indices, LanguageBatch, PaddedSequences, batch_by_tokens
from transom.data.sampler import FULL_BATCH, MicroBatching, iterate_epochs, stateless_uniform
from transom.data.text.documents import Documents
from transom.data.tokenizer.special_tokens import OWN_TOKENS, UNK, SpecialTokens
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import DataError

TokenIds = NDArray[np.int32]


class TokenStream:
    """All documents as a single sequence of tokens, with a special token before each document, and after it if it ends with another one.

    Attributes:
        documents: the documents.
        tokens: token ids of all documents, including the special tokens before and after them.
        document_starts: index in ``tokens`` of the special token before each document.
        special_tokens: special tokens of the tokenizer.
        blanks: tokens of blank noising.
    """

    def __init__(self, documents: Documents, tokenizer: Tokenizer) -> None:
        """Tokenize and concatenate the documents.

        Raises:
            DataError: the documents contain no tokens.
        """
        self.special_tokens = special = tokenizer.special_tokens
        self.blanks = Blanks.of(tokenizer)
        rows = [np.array(special.document(row), np.int32) for text in documents.texts for row in tokenizer.encode_batch([text])]
        self.documents = documents
        self.tokens: TokenIds = np.concatenate(rows) if rows else np.empty(0, np.int32)
        self.document_starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])[:-1].astype(np.int64)
        if len(self.tokens) == len(rows) * (1 + len(special.document_end)):
            raise DataError(f"{documents.name}: expected at least one token, found none; name other text")

    @property
    def n_tokens(self) -> int:
        """Number of tokens, including the special tokens of each document."""
        return len(self.tokens)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each document, excluding special tokens."""
        return np.diff(self.document_starts, append=len(self.tokens)) - 1 - len(self.special_tokens.document_end)

    @property
    def rows(self) -> list[list[int]]:
        """Token ids of each document, including the special token before the document."""
        n_end = len(self.special_tokens.document_end)
        return [row[: len(row) - n_end] for row in self.closed_rows]

    @property
    def closed_rows(self) -> list[list[int]]:
        """Token ids of each document, including the special tokens before and after the document."""
        return [row.tolist() for row in np.split(self.tokens, self.document_starts[1:])]

    def describe_token(self, token: int) -> str:
        """Return the origin of the document that contains a token, and the token's position in the document, for messages.

        Args:
            token: index of the token in ``tokens``.
        """
        number = bisect_right(self.document_starts.tolist(), token) - 1
        return f"{self.documents.origins[number]}, token {token - int(self.document_starts[number])}"


class WindowLoader:
    """Loader of endless training batches of windows, resumable at any position.

    The token stream is treated as a ring. Each epoch starts at a random offset, cuts the ring into windows that do not overlap, and
    shuffles the windows. Tokens that do not fill a last window are skipped in this epoch. Offset and order are a pure function of
    (seed, epoch). A position is the number of windows that all ranks together have read since the start of training. The position is the
    whole state of the loader.

    Attributes:
        stream: the training text.
        window_length: number of tokens per window.
        n_samples: number of windows per epoch.
        windows_per_batch: maximum number of windows per batch. The sizes of an epoch's batches differ by at most one window.
    """

    def __init__(
        self,
        stream: TokenStream,
        *,
        max_seq_len: int,
        batch_tokens: int,
        seed: int,
        blank_noising: float = 0.0,
        micro_batching: MicroBatching = FULL_BATCH,
    ) -> None:
        """Set the window length and the number of windows per batch.

        Args:
            stream: the training text.
            max_seq_len: maximum number of tokens per window.
            batch_tokens: maximum number of tokens per batch over all ranks and micro-batches. A longer window forms a batch of its own.
            seed: random seed of offset, order and blank noising.
            blank_noising: mean fraction of the tokens of a window that are replaced by the blank token.
            micro_batching: split of each batch over ranks and micro-batches.
        """
        self.stream, self._seed, self._blank_noising, self._micro_batching = stream, seed, blank_noising, micro_batching
        self.window_length = min(max_seq_len, stream.n_tokens)
        self.n_samples = stream.n_tokens // self.window_length
        self.windows_per_batch = max(1, batch_tokens // self.window_length)

    def describe_sample(self, sample: int) -> str:
        """Return the document and the token position at which a window starts, for messages."""
        return self.stream.describe_token(sample)

    def batches_from(self, position: int) -> Iterator[tuple[int, list[LanguageBatch]]]:
        """Yield batches endlessly, starting at a position.

        Yields:
            The position after the batch, which a checkpoint stores, and this rank's part of the batch as a list of micro-batches.
        """
        for end, epoch, batch in iterate_epochs(position, self.n_samples, self._plan):
            yield end, [self._batch(epoch, part) for part in self._micro_batching.split(batch)]

    def _plan(self, epoch: int) -> list[Indices]:
        order, beginning = stateless_uniform(self.n_samples + 1, self._seed, epoch)
        first = int(beginning[-1] * self.stream.n_tokens)
        starts = (first + self.window_length * np.argsort(order[:-1], kind="stable")) % self.stream.n_tokens
        return np.array_split(starts, -(-self.n_samples // self.windows_per_batch))

    def _batch(self, epoch: int, starts: NDArray[np.int64]) -> LanguageBatch:
        places = (starts[:, None] + np.arange(self.window_length + 1)) % self.stream.n_tokens
        rows = self.stream.tokens[places]
        inputs = rows[:, :-1]
        if self._blank_noising:
            keys = [(self._seed, epoch, start) for start in starts.tolist()]
            inputs = np.stack(
                [apply_blank_noising(row, self._blank_noising, key, self.stream.blanks) for row, key in zip(inputs, keys, strict=True)]
            )
        return language_batch(inputs, rows[:, 1:], starts, self.stream.special_tokens.document_start)


class Blanks(NamedTuple):
    """Tokens of blank noising.

    Attributes:
        blank: token id that replaces others.
        kept: token ids that are never replaced, which are the special tokens.
    """

    blank: int
    kept: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Blanks":
        """Return the tokens of a tokenizer."""
        return cls(tokenizer.blank_token_id, tuple(sorted(tokenizer.never_masked)))


OWN_BLANKS = Blanks(UNK, tuple(range(UNK + 1)))


def apply_blank_noising(window: TokenIds, p: float, key: tuple[int, int, int], blanks: Blanks = OWN_BLANKS) -> TokenIds:
    """Replace random tokens of a window by [UNK] (blank noising, Xie et al. 2017).

    The replacement rate of the window is uniformly distributed between 0 and 2 ``p``, so that many windows are close to clean text. Special
    tokens are kept. The result depends only on the arguments.

    Args:
        window: token ids of the window.
        p: mean replacement rate over all windows.
        key: integers that determine the random numbers, such as seed, epoch and sample.
        blanks: the token that replaces others, and the tokens that are kept.
    """
    (share, *_), choice = stateless_uniform(len(window), *key)
    return np.where((choice < 2 * p * share) & ~np.isin(window, blanks.kept), np.int32(blanks.blank), window)


def language_batch(
    tokens: TokenIds, labels: TokenIds, samples: NDArray[np.int64], document_start: int = OWN_TOKENS.document_start
) -> LanguageBatch:
    """Build a batch of windows of equal length without padding.

    Each document in a window is a segment of its own. Positions start at 0 at the start of each document and of the window.

    Args:
        tokens: token ids of each window.
        labels: next token at each position.
        samples: index of each window's first token in the token stream.
        document_start: token before each document.
    """
    places = np.arange(tokens.shape[1])
    is_start = (tokens == document_start) | (places == 0)
    positions = places - np.maximum.accumulate(np.where(is_start, places, 0), 1)
    if not is_start[:, 1:].any():
        positions = places[None]  # a single row of positions serves all rows
    lengths = np.full(len(tokens), tokens.shape[1])
    filled = [torch.from_numpy(x.astype(np.int64)) for x in (tokens, positions, np.cumsum(is_start, 1), lengths)]
    text = PaddedSequences(filled[0], filled[1], filled[2], filled[3])
    return LanguageBatch(text, torch.from_numpy(labels.astype(np.int64)), tuple(samples.tolist()))


def scoring_batches(
    rows: Sequence[Sequence[int]],
    max_seq_len: int,
    overlap: int,
    batch_tokens: int,
    first_only: bool = False,
    special: SpecialTokens = OWN_TOKENS,
) -> Iterator[tuple[LanguageBatch, list[int], Bool[Tensor, "batch target"]]]:
    """Cut texts into overlapping windows and batch windows of similar length, so that each token is scored once.

    Args:
        rows: token ids of each text, including the special token before the text.
        max_seq_len: maximum number of tokens per window.
        overlap: number of tokens by which consecutive windows of a text overlap. They only serve as context in the later window.
        batch_tokens: maximum number of tokens per batch, including padding. A longer window forms a batch of its own.
        first_only: use only the first window of each text.
        special: special tokens of the tokenizer.

    Yields:
        A batch, the index of the text of each row, and a mask that is True at labels that are in no earlier window of the same text.
    """
    stride = max_seq_len - overlap
    windows = [
        (number, start) for number, row in enumerate(rows) for start in range(0, 1 if first_only else max(len(row) - overlap, 1), stride)
    ]
    lengths = np.array([min(len(rows[number]) - start, max_seq_len) for number, start in windows], np.int64)
    for batch in batch_by_tokens(np.argsort(lengths, kind="stable"), lengths, batch_tokens):
        parts = [windows[i] for i in batch.tolist()]
        inputs = [rows[number][start : start + max_seq_len] for number, start in parts]
        next_tokens = [
            [*rows[number][start + 1 : start + 1 + max_seq_len], special.end][: len(row)]
            for row, (number, start) in zip(inputs, parts, strict=True)
        ]
        text = PaddedSequences.pad(inputs, special.padding)
        labels = PaddedSequences.pad(next_tokens, special.padding).tokens
        first = torch.tensor([overlap if start else 0 for _, start in parts])
        new = (text.segments > 0) & (torch.arange(labels.shape[1]) >= first[:, None])
        yield LanguageBatch(text, labels, tuple(start for _, start in parts)), [number for number, _ in parts], new
