"""From documents to batches of windows: one stream of tokens, cut anew for each epoch."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from transom.data.batch import Indices, LanguageBatch, Sequences, cut_batches
from transom.data.sampler import WHOLE, Slicing, draws, walk
from transom.data.text.documents import Documents
from transom.data.tokenizer.special import EOS, UNK
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import DataError

Tokens = NDArray[np.int32]


class Stream:
    """Documents as one row of tokens, each behind an end symbol: what ends a document begins the next.

    Attributes:
        documents: the texts.
        tokens: all of them.
        starts: place of each document's end symbol.
    """

    def __init__(self, documents: Documents, tokenizer: Tokenizer) -> None:
        """Encode the documents.

        Raises:
            DataError: no token is in them.
        """
        rows = [np.array([EOS, *row], np.int32) for text in documents.texts for row in tokenizer.encode_batch([text])]
        self.documents = documents
        self.tokens: Tokens = np.concatenate(rows) if rows else np.empty(0, np.int32)
        self.starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])[:-1].astype(np.int64)
        if len(self.tokens) == len(rows):
            raise DataError(f"{documents.name}: expected text that the tokenizer knows, found no token; name other text")

    @property
    def n_tokens(self) -> int:
        """Count the tokens, one end symbol a document included."""
        return len(self.tokens)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Count each document's tokens, its end symbol not included."""
        return np.diff(self.starts, append=len(self.tokens)) - 1

    @property
    def rows(self) -> list[list[int]]:
        """Give each document apart, behind its start symbol."""
        return [row.tolist() for row in np.split(self.tokens, self.starts[1:])]

    def place(self, token: int) -> str:
        """Name the document that a token stands in, and where."""
        number = bisect_right(self.starts.tolist(), token) - 1
        return f"{self.documents.places[number]}, token {token - int(self.starts[number])}"


class WindowLoader:
    """Training batches without end, from any position.

    The stream is a ring: an epoch begins somewhere on it, goes round once in windows that do not overlap, and takes them in a random
    order; each epoch has its own beginning and order, a pure function of (seed, epoch). A position is the number of windows read since
    the start of training, over all shards. It is the whole state of the loader.

    Attributes:
        stream: the training text.
        length: tokens of a window.
        n_samples: windows an epoch; up to a window's length of tokens at the ring's seam waits for the next epoch.
        batch_windows: most windows of a batch; an epoch's batches differ by one at most.
    """

    def __init__(
        self, stream: Stream, *, max_seq_len: int, batch_tokens: int, seed: int, token_dropout: float = 0.0, slicing: Slicing = WHOLE
    ) -> None:
        """Plan windows.

        Args:
            stream: the training text.
            max_seq_len: most tokens of a window.
            batch_tokens: most tokens of a batch, over all shards and slices; a longer window is a batch of its own.
            seed: of the order, and of the tokens that are blanked.
            token_dropout: share of a window's tokens that are blanked, a mean.
            slicing: of every batch.
        """
        self.stream, self._seed, self._token_dropout, self._slicing = stream, seed, token_dropout, slicing
        self.length = min(max_seq_len, stream.n_tokens)
        self.n_samples = stream.n_tokens // self.length
        self.batch_windows = max(1, batch_tokens // self.length)

    def place(self, sample: int) -> str:
        """Name where a sample begins, for people."""
        return self.stream.place(sample)

    def batches_from(self, position: int) -> Iterator[tuple[int, list[LanguageBatch]]]:
        """Yield each batch, as slices, with the position behind it: what a checkpoint stores to go on from there."""
        for end, epoch, batch in walk(position, self.n_samples, self._plan):
            yield end, [self._batch(epoch, part) for part in self._slicing.of(batch)]

    def _plan(self, epoch: int) -> list[Indices]:
        order, beginning = draws(self.n_samples + 1, self._seed, epoch)
        first = int(beginning[-1] * self.stream.n_tokens)
        starts = (first + self.length * np.argsort(order[:-1], kind="stable")) % self.stream.n_tokens
        return np.array_split(starts, -(-self.n_samples // self.batch_windows))

    def _batch(self, epoch: int, starts: NDArray[np.int64]) -> LanguageBatch:
        places = (starts[:, None] + np.arange(self.length + 1)) % self.stream.n_tokens
        rows = self.stream.tokens[places]
        read = rows[:, :-1]
        if self._token_dropout:
            keys = [(self._seed, epoch, start) for start in starts.tolist()]
            read = np.stack([blank(row, self._token_dropout, key) for row, key in zip(read, keys, strict=True)])
        return language_batch(read, rows[:, 1:], starts)


def blank(window: Tokens, p: float, key: tuple[int, int, int]) -> Tokens:
    """Let [UNK] stand for tokens (blank noising, Xie et al. 2017): a pure function of the window and the key.

    The window's own share is uniform between 0 and 2 ``p``, so that many windows are nearly as they are read when all is learnt.
    Special symbols stay.
    """
    (share, *_), choice = draws(len(window), *key)
    return np.where((choice < 2 * p * share) & (window > UNK), np.int32(UNK), window)


def language_batch(tokens: Tokens, labels: Tokens, samples: NDArray[np.int64]) -> LanguageBatch:
    """Make a batch of full windows; a document's tokens are a segment and count their positions from its start symbol, or the window's."""
    places = np.arange(tokens.shape[1])
    begins = (tokens == EOS) | (places == 0)
    positions = places - np.maximum.accumulate(np.where(begins, places, 0), 1)
    if not begins[:, 1:].any():
        positions = places[None]  # one row for all
    lengths = np.full(len(tokens), tokens.shape[1])
    text = Sequences(*(torch.from_numpy(x.astype(np.int64)) for x in (tokens, positions, np.cumsum(begins, 1), lengths)))
    return LanguageBatch(text, torch.from_numpy(labels.astype(np.int64)), tuple(samples.tolist()))


def scoring_batches(
    rows: Sequence[Sequence[int]], max_seq_len: int, overlap: int, batch_tokens: int, first_only: bool = False
) -> Iterator[tuple[LanguageBatch, list[int], Bool[Tensor, "batch target"]]]:
    """Cut texts into windows and batch windows of like length, for reading each token once.

    Args:
        rows: texts as tokens, each behind its start symbol.
        max_seq_len: most tokens of a window.
        overlap: tokens that a further window of a text shows again before those that count.
        batch_tokens: most tokens of a batch, padding included; a longer window is a batch of its own.
        first_only: leave out what is behind a text's first window.

    Yields:
        A batch, the text that each of its rows is of, and True where a label counts: where no earlier window has it.
    """
    step = max_seq_len - overlap
    windows = [
        (number, start) for number, row in enumerate(rows) for start in range(0, 1 if first_only else max(len(row) - overlap, 1), step)
    ]
    lengths = np.array([min(len(rows[number]) - start, max_seq_len) for number, start in windows], np.int64)
    for batch in cut_batches(np.argsort(lengths, kind="stable"), lengths, batch_tokens):
        parts = [windows[i] for i in batch.tolist()]
        inside = [rows[number][start : start + max_seq_len] for number, start in parts]
        behind = [
            [*rows[number][start + 1 : start + 1 + max_seq_len], EOS][: len(row)]
            for row, (number, start) in zip(inside, parts, strict=True)
        ]
        text = Sequences.pad(inside)
        labels = Sequences.pad(behind).tokens
        first = torch.tensor([overlap if start else 0 for _, start in parts])
        new = (text.segments > 0) & (torch.arange(labels.shape[1]) >= first[:, None])
        yield LanguageBatch(text, labels, tuple(start for _, start in parts)), [number for number, _ in parts], new
