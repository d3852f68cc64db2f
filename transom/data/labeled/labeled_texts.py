"""Loading of labeled texts for text classification, as pairs of a text and its class."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from transom.config.data import DataConfig, LabeledFilesConfig, PhrasebookConfig
from transom.data.batch import Indices, LabeledTextBatch, PaddedSequences, batch_by_tokens, sequence_lengths
from transom.data.labeled.class_labels import encode_labels
from transom.data.pairs.loader import encode
from transom.data.pairs.pairs import Pairs
from transom.data.sampler import FULL_BATCH, MicroBatching, iterate_epochs, plan_epoch
from transom.data.split import Splits, holdout, read_splits
from transom.data.synthetic.phrasebook.generate import generate_phrasebook
from transom.data.text.table_columns import LABEL, TEXT
from transom.data.text.tabular import read_table
from transom.data.text.text_io import expand_path
from transom.data.tokenizer.special_tokens import EOS
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError, DataError

VALID_FRACTION = 0.1
"""Fraction of the texts that is held out for validation if the recipe names no validation texts."""


def load_labeled_texts(data: DataConfig, base: Path) -> Splits[Pairs]:
    """Read or generate the labeled texts of a recipe, as pairs of a text and its class.

    Args:
        data: the recipe's data section.
        base: the recipe's folder, to which ``data.root`` is relative.

    Raises:
        DataError: a file cannot be read, a sample has no text or no class, or there are too few texts to split.
    """
    root = base / expand_path(data.root)
    if isinstance(data.generate, PhrasebookConfig):
        return Splits(*map(_language_identification, generate_phrasebook(data.generate).parts.values()))
    return read_splits(
        data, lambda files: read_labeled_texts(files, root), lambda texts: holdout(texts, texts.source, VALID_FRACTION, "texts")
    )


def read_labeled_texts(files: LabeledFilesConfig, root: Path) -> Pairs:
    """Read labeled texts, as pairs of a text and its class.

    Args:
        files: the file to read and its columns.
        root: folder to which the path in ``files`` is relative.

    Raises:
        DataError: the file cannot be read, or a record has no text or no class.
        ConfigError: the file's format is unknown, or a field does not fit the format.
    """
    path = root / expand_path(files.file)
    lines, (texts, labels), notes = read_table(
        path, (TEXT, LABEL), (files.text_field, files.label_field), files.header, numbers_as_text=True
    )
    labels = [label.strip() for label in labels]
    for line, text, label in zip(lines, texts, labels, strict=True):
        if not text.strip() or not label:
            raise DataError(
                f"{path}:{line}: expected a text and its class, found no {'class' if text.strip() else 'text'}; remove the line"
            )
    return Pairs(texts, labels, str(path), lines, notes)


def labeled_text_batch(rows: Sequence[Sequence[int]], labels: Sequence[int], samples: Sequence[int]) -> LabeledTextBatch:
    """Build a batch of labeled texts, with an end-of-sequence token before each text.

    Args:
        rows: token ids of each text, without special tokens.
        labels: class index of each text.
        samples: index of each text in the data set.
    """
    return LabeledTextBatch(PaddedSequences.pad([[EOS, *row] for row in rows]), torch.tensor(labels), tuple(samples))


def labeled_text_batches(
    rows: Sequence[Sequence[int]], labels: Sequence[int], max_seq_len: int, batch_tokens: int
) -> list[LabeledTextBatch]:
    """Sort labeled texts by length and batch them for a single pass over the data, such as validation.

    Args:
        rows: token ids of each text, without special tokens.
        labels: class index of each text.
        max_seq_len: maximum number of tokens per text, including special tokens. Longer texts are truncated.
        batch_tokens: maximum number of tokens per batch, including padding. A longer text forms a batch of its own.
    """
    cut = [row[: max_seq_len - 1] for row in rows]
    lengths = sequence_lengths(cut) + 1
    order = np.argsort(lengths, kind="stable")
    return [
        labeled_text_batch([cut[i] for i in part], [labels[i] for i in part], part)
        for part in map(np.ndarray.tolist, batch_by_tokens(order, lengths, batch_tokens))
    ]


def reject_too_long(texts: Pairs, rows: Sequence[Sequence[int]], max_seq_len: int) -> None:
    """Raise an error if a text is longer than the context window.

    Args:
        texts: labeled texts.
        rows: token ids of each text, without special tokens.
        max_seq_len: maximum number of tokens per text, including special tokens.

    Raises:
        DataError: a text has more than ``max_seq_len`` tokens.
    """
    for sample, row in enumerate(rows):
        if len(row) + 1 > max_seq_len:
            raise DataError(
                f"{texts.describe_sample(sample)}: expected at most model.max_seq_len = {max_seq_len} tokens, special tokens included,"
                f" found {len(row) + 1}; shorten it, or set data.too_long = 'truncate' or 'drop'"
            )


class LabeledTextLoader:
    """Loader of endless training batches of labeled texts, resumable at any position.

    A position is the number of texts that all ranks together have read since the start of training. The position is the whole state of the
    loader.

    Attributes:
        texts: all texts, including dropped texts.
        n_samples: number of texts per epoch, which excludes dropped texts.
        max_seq_len: maximum number of tokens per text, including special tokens.
        n_too_long: number of texts longer than ``max_seq_len``, which are truncated or dropped.
        lengths: number of tokens of each text in ``texts`` before truncation, excluding special tokens.
    """

    def __init__(
        self,
        texts: Pairs,
        tokenizer: Tokenizer,
        classes: Sequence[str],
        *,
        max_seq_len: int,
        batch_tokens: int,
        seed: int,
        too_long: Literal["truncate", "drop", "refuse"] = "truncate",
        word_dropout: float = 0.0,
        micro_batching: MicroBatching = FULL_BATCH,
    ) -> None:
        """Tokenize the texts and truncate or drop texts that are too long.

        Args:
            texts: labeled texts.
            tokenizer: tokenizer of the texts.
            classes: names of the classes by index.
            max_seq_len: maximum number of tokens per text, including special tokens.
            batch_tokens: maximum number of tokens per batch, including padding, over all ranks and micro-batches.
            seed: random seed of the order of texts and of word dropout.
            too_long: treatment of longer texts. "truncate" keeps the first tokens, "drop" drops the text, "refuse" raises an error.
            word_dropout: probability of dropping a token. Each epoch drops different tokens.
            micro_batching: split of each batch over ranks and micro-batches.

        Raises:
            DataError: no text is left, a text has an unknown class, or a text is too long and ``too_long`` is "refuse".
            ConfigError: a text is longer than a batch.
        """
        rows = encode(tokenizer, texts.source)
        self.texts, self.max_seq_len = texts, max_seq_len
        self.lengths = sequence_lengths(rows)
        if too_long == "refuse":
            reject_too_long(texts, rows, max_seq_len)
        too_long_rows = self.lengths + 1 > max_seq_len
        self.n_too_long = int(too_long_rows.sum())
        self._kept = list(range(len(rows))) if too_long == "truncate" else np.flatnonzero(~too_long_rows).tolist()
        self.n_samples = len(self._kept)
        if not self._kept:
            raise DataError(f"{texts.name}: expected texts of at most {max_seq_len} tokens, found none; raise model.max_seq_len")
        self._rows = [rows[i][: max_seq_len - 1] for i in self._kept]
        labels = encode_labels(texts.target, classes, texts)
        self._labels = [labels[i] for i in self._kept]
        self._lengths = sequence_lengths(self._rows) + 1
        if (longest := int(self._lengths.max())) > batch_tokens:
            raise ConfigError(
                f"training.batch_tokens: expected at least {longest}, the tokens of the longest text, found {batch_tokens}; raise it or"
                " lower model.max_seq_len"
            )
        self._batch_tokens, self._seed, self._word_dropout, self._micro_batching = batch_tokens, seed, word_dropout, micro_batching

    def describe_sample(self, sample: int) -> str:
        """Return the line number of a sample as text, for messages."""
        return f"line {self.texts.line_number(sample)}"

    def batches_from(self, position: int) -> Iterator[tuple[int, list[LabeledTextBatch]]]:
        """Yield batches endlessly, starting at a position.

        Yields:
            The position after the batch, which a checkpoint stores, and this rank's part of the batch as a list of micro-batches.
        """
        for end, epoch, batch in iterate_epochs(position, self.n_samples, self._plan):
            yield end, [self._batch(epoch, part.tolist()) for part in self._micro_batching.split(batch)]

    def _plan(self, epoch: int) -> list[Indices]:
        return plan_epoch(self._lengths, self._lengths, batch_tokens=self._batch_tokens, seed=self._seed, epoch=epoch)

    def _batch(self, epoch: int, rows: list[int]) -> LabeledTextBatch:
        samples = [self._kept[i] for i in rows]
        keys = [(self._seed, epoch, sample) for sample in samples]
        read = [apply_word_dropout(self._rows[i], self._word_dropout, key) for i, key in zip(rows, keys, strict=True)]
        return labeled_text_batch(read, [self._labels[i] for i in rows], samples)


def apply_word_dropout(row: Sequence[int], p: float, key: tuple[int, int, int]) -> Sequence[int]:
    """Drop each token of a text with probability ``p`` (word dropout, Iyyer et al. 2015).

    If no token would be left, all tokens are kept. The result depends only on the arguments.

    Args:
        row: token ids of the text.
        p: probability of dropping a token.
        key: integers that determine the random numbers, such as seed, epoch and sample.
    """
    if not p:
        return row
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(len(row))
    return [token for token, kept in zip(row, bits >= p * 2.0**64, strict=True) if kept] or row


def _language_identification(pairs: Pairs) -> Pairs:
    """Convert English-Spanish sentence pairs to texts labeled with their language.

    Each distinct sentence occurs once. Sentences that occur in both languages are left out.
    """
    english, spanish = (dict.fromkeys(side) for side in (pairs.source, pairs.target))
    texts = [
        (text, name)
        for side, name, other in ((english, "English", spanish), (spanish, "Spanish", english))
        for text in side
        if text not in other
    ]
    return Pairs([text for text, _ in texts], [name for _, name in texts], pairs.name)
