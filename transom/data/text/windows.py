"""Batches of fixed-length windows over a stream of tokens, cut at a new offset in each epoch."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from transom.data.batch import Indices, LanguageBatch, PaddedSequences, batch_by_tokens
from transom.data.sampler import FULL_BATCH, MicroBatching, iterate_epochs, stateless_uniform
from transom.data.text.documents import Documents
from transom.data.tokenizer.special_tokens import EOS, UNK
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import DataError

TokenIds = NDArray[np.int32]


class TokenStream:
    """All documents as one sequence of tokens; each document is preceded by an end-of-sequence token, which ends the one before it.

    Attributes:
        documents: the texts.
        tokens: token ids of all documents.
        document_starts: index in ``tokens`` of the end-of-sequence token before each document.
    """

    def __init__(self, documents: Documents, tokenizer: Tokenizer) -> None:
        """Encode the documents.

        Raises:
            DataError: the documents contain no token.
        """
        rows = [np.array([EOS, *row], np.int32) for text in documents.texts for row in tokenizer.encode_batch([text])]
        self.documents = documents
        self.tokens: TokenIds = np.concatenate(rows) if rows else np.empty(0, np.int32)
        self.document_starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])[:-1].astype(np.int64)
        if len(self.tokens) == len(rows):
            raise DataError(f"{documents.name}: expected at least one token, found none; name other text")

    @property
    def n_tokens(self) -> int:
        """Number of tokens, one end-of-sequence token per document included."""
        return len(self.tokens)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each document, its end-of-sequence token excluded."""
        return np.diff(self.document_starts, append=len(self.tokens)) - 1

    @property
    def rows(self) -> list[list[int]]:
        """Token ids of each document, preceded by an end-of-sequence token."""
        return [row.tolist() for row in np.split(self.tokens, self.document_starts[1:])]

    def describe_token(self, token: int) -> str:
        """Return the document that contains a token and the token's position in it, for messages."""
        number = bisect_right(self.document_starts.tolist(), token) - 1
        return f"{self.documents.origins[number]}, token {token - int(self.document_starts[number])}"


class WindowLoader:
    """Endless training batches of windows, resumable at any position.

    The stream is treated as a ring. Each epoch starts at a random offset, covers the ring once in windows that do not overlap, and shuffles
    the windows; offset and order are a pure function of (seed, epoch). A position is the number of windows read since the start of training
    by all ranks. It is the whole state of the loader.

    Attributes:
        stream: the training text.
        window_length: tokens per window.
        n_samples: windows per epoch; fewer tokens than a window, before the start of the ring, are skipped in each epoch.
        windows_per_batch: maximum number of windows per batch; the batches of an epoch differ by at most one window.
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
            batch_tokens: maximum number of tokens per batch over all ranks and micro-batches; a longer window is a batch of its own.
            seed: random seed of the order and of blank noising.
            blank_noising: mean fraction of a window's tokens that are replaced by [UNK].
            micro_batching: split of every batch over ranks and micro-batches.
        """
        self.stream, self._seed, self._blank_noising, self._micro_batching = stream, seed, blank_noising, micro_batching
        self.window_length = min(max_seq_len, stream.n_tokens)
        self.n_samples = stream.n_tokens // self.window_length
        self.windows_per_batch = max(1, batch_tokens // self.window_length)

    def describe_sample(self, sample: int) -> str:
        """Return the document and the position at which a window starts, for messages."""
        return self.stream.describe_token(sample)

    def batches_from(self, position: int) -> Iterator[tuple[int, list[LanguageBatch]]]:
        """Yield the position after each batch, which a checkpoint stores, and the batch as micro-batches."""
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
            inputs = np.stack([apply_blank_noising(row, self._blank_noising, key) for row, key in zip(inputs, keys, strict=True)])
        return language_batch(inputs, rows[:, 1:], starts)


def apply_blank_noising(window: TokenIds, p: float, key: tuple[int, int, int]) -> TokenIds:
    """Replace tokens by [UNK] (blank noising, Xie et al. 2017): a pure function of the window and the key.

    The window's own rate is uniform between 0 and 2 ``p``, so that many windows are close to the clean text of inference. Special tokens
    are kept.
    """
    (share, *_), choice = stateless_uniform(len(window), *key)
    return np.where((choice < 2 * p * share) & (window > UNK), np.int32(UNK), window)


def language_batch(tokens: TokenIds, labels: TokenIds, samples: NDArray[np.int64]) -> LanguageBatch:
    """Build a batch of full windows; each document is a segment with positions from 0 at its start, or at the window's start."""
    places = np.arange(tokens.shape[1])
    is_start = (tokens == EOS) | (places == 0)
    positions = places - np.maximum.accumulate(np.where(is_start, places, 0), 1)
    if not is_start[:, 1:].any():
        positions = places[None]  # a single row of positions serves all rows
    lengths = np.full(len(tokens), tokens.shape[1])
    text = PaddedSequences(*(torch.from_numpy(x.astype(np.int64)) for x in (tokens, positions, np.cumsum(is_start, 1), lengths)))
    return LanguageBatch(text, torch.from_numpy(labels.astype(np.int64)), tuple(samples.tolist()))


def scoring_batches(
    rows: Sequence[Sequence[int]], max_seq_len: int, overlap: int, batch_tokens: int, first_only: bool = False
) -> Iterator[tuple[LanguageBatch, list[int], Bool[Tensor, "batch target"]]]:
    """Cut texts into overlapping windows and batch windows of similar length, so that each token is scored once.

    Args:
        rows: token ids of each text, preceded by an end-of-sequence token.
        max_seq_len: maximum number of tokens per window.
        overlap: number of tokens at the start of each further window that only serve as context.
        batch_tokens: maximum number of tokens per batch, padding included; a longer window is a batch of its own.
        first_only: use only the first window of each text.

    Yields:
        A batch, the index of each row's text, and a mask that is True at labels that no earlier window contains.
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
            [*rows[number][start + 1 : start + 1 + max_seq_len], EOS][: len(row)]
            for row, (number, start) in zip(inputs, parts, strict=True)
        ]
        text = PaddedSequences.pad(inputs)
        labels = PaddedSequences.pad(next_tokens).tokens
        first = torch.tensor([overlap if start else 0 for _, start in parts])
        new = (text.segments > 0) & (torch.arange(labels.shape[1]) >= first[:, None])
        yield LanguageBatch(text, labels, tuple(start for _, start in parts)), [number for number, _ in parts], new
