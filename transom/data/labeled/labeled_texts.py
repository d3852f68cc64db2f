"""Labeled texts for text classification: pairs whose target is the class."""

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
"""Fraction of the texts that is split off for validation if the recipe names no validation texts."""


def load_labeled_texts(data: DataConfig, base: Path) -> Splits[Pairs]:
    """Read or generate the labeled texts of a recipe.

    Args:
        data: the recipe's data section.
        base: the recipe's folder, to which ``data.root`` is relative.

    Raises:
        DataError: a file cannot be read, a text has no class, or there are too few texts to split.
    """
    root = base / expand_path(data.root)
    if isinstance(data.generate, PhrasebookConfig):
        return Splits(*map(_language_identification, generate_phrasebook(data.generate).parts.values()))
    return read_splits(
        data, lambda files: read_labeled_texts(files, root), lambda texts: holdout(texts, texts.source, VALID_FRACTION, "texts")
    )


def read_labeled_texts(files: LabeledFilesConfig, root: Path) -> Pairs:
    """Read labeled texts.

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
    """Build a batch of labeled texts, each preceded by an end-of-sequence token as in a token stream."""
    return LabeledTextBatch(PaddedSequences.pad([[EOS, *row] for row in rows]), torch.tensor(labels), tuple(samples))


def labeled_text_batches(
    rows: Sequence[Sequence[int]], labels: Sequence[int], max_seq_len: int, batch_tokens: int
) -> list[LabeledTextBatch]:
    """Batch texts of similar length for one pass such as validation; longer texts are truncated.

    Args:
        rows: token ids of each text, without special tokens.
        labels: class index of each text.
        max_seq_len: maximum number of tokens per text, special tokens included.
        batch_tokens: maximum number of tokens per batch, padding included; a longer text is a batch of its own.
    """
    cut = [row[: max_seq_len - 1] for row in rows]
    lengths = sequence_lengths(cut) + 1
    order = np.argsort(lengths, kind="stable")
    return [
        labeled_text_batch([cut[i] for i in part], [labels[i] for i in part], part)
        for part in map(np.ndarray.tolist, batch_by_tokens(order, lengths, batch_tokens))
    ]


def reject_too_long(texts: Pairs, rows: Sequence[Sequence[int]], max_seq_len: int) -> None:
    """Reject texts that are longer than the context window.

    Args:
        texts: labeled texts.
        rows: token ids of each text, without special tokens.
        max_seq_len: maximum number of tokens per text, special tokens included.

    Raises:
        DataError: a text is longer.
    """
    for sample, row in enumerate(rows):
        if len(row) + 1 > max_seq_len:
            raise DataError(
                f"{texts.describe_sample(sample)}: expected at most model.max_seq_len = {max_seq_len} tokens, special tokens included,"
                f" found {len(row) + 1}; shorten it, or set data.too_long = 'truncate' or 'drop'"
            )


class LabeledTextLoader:
    """Endless training batches of labeled texts, resumable at any position.

    A position is the number of texts read since the start of training by all ranks. It is the whole state of the loader.

    Attributes:
        texts: all texts, dropped ones included.
        n_samples: number of texts per epoch.
        max_seq_len: maximum number of tokens per text, special tokens included.
        n_too_long: number of texts longer than ``max_seq_len``, which are truncated or dropped.
        lengths: number of tokens of each text, special tokens excluded.
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
        """Tokenize the texts.

        Args:
            texts: labeled texts.
            tokenizer: tokenizer of the texts.
            classes: names of the classes by index.
            max_seq_len: maximum number of tokens per text, special tokens included.
            batch_tokens: maximum number of tokens per batch, padding included, over all ranks and micro-batches.
            seed: random seed of order and word dropout.
            too_long: treatment of longer texts: keep the first tokens, drop the text, or raise an error.
            word_dropout: probability of dropping a token, sampled anew in each epoch.
            micro_batching: split of every batch over ranks and micro-batches.

        Raises:
            DataError: no text is left, or a text is too long and ``too_long`` is "refuse".
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
        """Return a text's line, for messages."""
        return f"line {self.texts.line_number(sample)}"

    def batches_from(self, position: int) -> Iterator[tuple[int, list[LabeledTextBatch]]]:
        """Yield the position after each batch, which a checkpoint stores, and the batch as micro-batches."""
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
    """Drop each token with probability ``p`` (word dropout, Iyyer et al. 2015): a pure function of the text and the key.

    If no token would be left, all are kept.
    """
    if not p:
        return row
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(len(row))
    return [token for token, kept in zip(row, bits >= p * 2.0**64, strict=True) if kept] or row


def _language_identification(pairs: Pairs) -> Pairs:
    """Turn the phrasebook into language identification: each sentence once, labeled by its language, without those in both."""
    english, spanish = (dict.fromkeys(side) for side in (pairs.source, pairs.target))
    texts = [
        (text, name)
        for side, name, other in ((english, "English", spanish), (spanish, "Spanish", english))
        for text in side
        if text not in other
    ]
    return Pairs([text for text, _ in texts], [name for _, name in texts], pairs.name)
