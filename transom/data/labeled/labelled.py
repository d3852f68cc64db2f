"""Texts with a class each, what a classifier learns from: pairs whose target is the class."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from transom.config.data import Data, LabelledFiles, Phrasebook
from transom.data.batch import Indices, LabelledBatch, Sequences, cut_batches, lengths_of
from transom.data.labeled.classes import numbered
from transom.data.pairs.loader import encode
from transom.data.pairs.pairs import Pairs
from transom.data.sampler import WHOLE, Slicing, plan_epoch, walk
from transom.data.split import Splits, read_splits, split_off
from transom.data.synthetic.phrasebook.generate import generate
from transom.data.text.columns import read_columns
from transom.data.text.text import expanded
from transom.data.tokenizer.special import EOS
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError, DataError

VALID_SHARE = 0.1
"""Part of the texts that is split off where no validation texts are named."""


def load_labelled(data: Data, base: Path) -> Splits[Pairs]:
    """Read or generate the texts of a recipe.

    Args:
        data: the recipe's data section.
        base: folder that ``data.root`` is relative to, the recipe's own.

    Raises:
        DataError: a file cannot be read, a text has no class, or there is too little to split.
    """
    root = base / expanded(data.root)
    if isinstance(data.generate, Phrasebook):
        return Splits(*map(_languages, generate(data.generate).parts.values()))
    return read_splits(data, lambda files: read_labelled(files, root), lambda texts: split_off(texts, texts.source, VALID_SHARE, "texts"))


def read_labelled(files: LabelledFiles, root: Path) -> Pairs:
    """Read texts with a class each.

    Raises:
        DataError: the file cannot be read, or a record has no text or no class.
        ConfigError: it is of no known format, or a field does not suit the format.
    """
    path = root / expanded(files.file)
    lines, (texts, labels) = read_columns(path, (files.text_field, files.label_field), ("text", "label"), numbers=True)
    labels = [label.strip() for label in labels]
    for line, text, label in zip(lines, texts, labels, strict=True):
        if not text.strip() or not label:
            raise DataError(
                f"{path}:{line}: expected a text and its class, found no {'class' if text.strip() else 'text'}; remove the line"
            )
    return Pairs(texts, labels, str(path), lines)


def label_batch(rows: Sequence[Sequence[int]], labels: Sequence[int], samples: Sequence[int]) -> LabelledBatch:
    """Make a batch of texts, each behind its start symbol, which is what ends the text before it in a stream of many."""
    return LabelledBatch(Sequences.pad([[EOS, *row] for row in rows]), torch.tensor(labels), tuple(samples))


def text_batches(rows: Sequence[Sequence[int]], labels: Sequence[int], max_seq_len: int, batch_tokens: int) -> list[LabelledBatch]:
    """Batch texts of like length for reading each once; the beginning of one that is too long stands for it.

    Args:
        rows: texts as tokens, without special symbols.
        labels: number of each one's class.
        max_seq_len: most tokens of a text, special symbols included.
        batch_tokens: most tokens of a batch, padding included; a longer text is a batch of its own.
    """
    cut = [row[: max_seq_len - 1] for row in rows]
    lengths = lengths_of(cut) + 1
    order = np.argsort(lengths, kind="stable")
    return [
        label_batch([cut[i] for i in part], [labels[i] for i in part], part)
        for part in map(np.ndarray.tolist, cut_batches(order, lengths, batch_tokens))
    ]


def refuse_longer(texts: Pairs, rows: Sequence[Sequence[int]], max_seq_len: int) -> None:
    """Refuse texts that are longer than the model reads.

    Args:
        texts: each with its class.
        rows: the same as tokens, without special symbols.
        max_seq_len: most tokens of a text, special symbols included.

    Raises:
        DataError: there is one.
    """
    for sample, row in enumerate(rows):
        if len(row) + 1 > max_seq_len:
            raise DataError(
                f"{texts.place(sample)}: expected at most model.max_seq_len = {max_seq_len} tokens, special symbols included, found"
                f" {len(row) + 1}; shorten it, or set data.too_long = 'truncate' or 'drop'"
            )


class LabelledLoader:
    """Training batches without end, from any position.

    A position is the number of texts read since the start of training, over all shards: the whole state of the loader.

    Attributes:
        texts: all texts, those that are left out too.
        n_samples: texts that are trained on: an epoch.
        max_seq_len: most tokens of a text, its start symbol included.
        n_longer: texts of more tokens than the model reads; their beginning is trained on, or they are left out.
        lengths: tokens of all texts, special symbols not included.
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
        token_dropout: float = 0.0,
        slicing: Slicing = WHOLE,
    ) -> None:
        """Encode the texts.

        Args:
            texts: each with its class.
            tokenizer: of the texts.
            classes: by number.
            max_seq_len: most tokens of a text, special symbols included.
            batch_tokens: most tokens of a batch, padding included, over all shards and slices.
            seed: of the order, and of what is left out.
            too_long: what becomes of a longer text: its beginning is kept, it is left out, or it is refused.
            token_dropout: probability that a token is left out, drawn in each epoch anew.
            slicing: of every batch.

        Raises:
            DataError: no text is left, or one is too long and to be refused.
            ConfigError: a text is longer than a batch.
        """
        rows = encode(tokenizer, texts.source)
        self.texts, self.max_seq_len = texts, max_seq_len
        self.lengths = lengths_of(rows)
        if too_long == "refuse":
            refuse_longer(texts, rows, max_seq_len)
        longer = self.lengths + 1 > max_seq_len
        self.n_longer = int(longer.sum())
        self._kept = list(range(len(rows))) if too_long == "truncate" else np.flatnonzero(~longer).tolist()
        self.n_samples = len(self._kept)
        if not self._kept:
            raise DataError(f"{texts.name}: expected texts of at most {max_seq_len} tokens, found none; raise model.max_seq_len")
        self._rows = [rows[i][: max_seq_len - 1] for i in self._kept]
        labels = numbered(texts.target, classes, texts)
        self._labels = [labels[i] for i in self._kept]
        self._lengths = lengths_of(self._rows) + 1
        if (longest := int(self._lengths.max())) > batch_tokens:
            raise ConfigError(
                f"training.batch_tokens: expected at least {longest}, the tokens of the longest text, found {batch_tokens}; raise it or"
                " lower model.max_seq_len"
            )
        self._batch_tokens, self._seed, self._token_dropout, self._slicing = batch_tokens, seed, token_dropout, slicing

    def place(self, sample: int) -> str:
        """Name a text by its line."""
        return f"line {self.texts.line(sample)}"

    def batches_from(self, position: int) -> Iterator[tuple[int, list[LabelledBatch]]]:
        """Yield each batch, as slices, with the position behind it: what a checkpoint stores to go on from there."""
        for end, epoch, batch in walk(position, self.n_samples, self._plan):
            yield end, [self._batch(epoch, part.tolist()) for part in self._slicing.of(batch)]

    def _plan(self, epoch: int) -> list[Indices]:
        return plan_epoch(self._lengths, self._lengths, batch_tokens=self._batch_tokens, seed=self._seed, epoch=epoch)

    def _batch(self, epoch: int, rows: list[int]) -> LabelledBatch:
        samples = [self._kept[i] for i in rows]
        keys = [(self._seed, epoch, sample) for sample in samples]
        read = [drop_tokens(self._rows[i], self._token_dropout, key) for i, key in zip(rows, keys, strict=True)]
        return label_batch(read, [self._labels[i] for i in rows], samples)


def drop_tokens(row: Sequence[int], p: float, key: tuple[int, int, int]) -> Sequence[int]:
    """Leave each token out with probability ``p`` (Iyyer et al. 2015): a pure function of the text and the key.

    Where none would be left, all stay.
    """
    if not p:
        return row
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(len(row))
    return [token for token, kept in zip(row, bits >= p * 2.0**64, strict=True) if kept] or row


def _languages(pairs: Pairs) -> Pairs:
    """Take both sides of the phrasebook apart: sentences of two languages, each one once; one that is the same in both is left out."""
    english, spanish = (dict.fromkeys(side) for side in (pairs.source, pairs.target))
    texts = [
        (text, name)
        for side, name, other in ((english, "English", spanish), (spanish, "Spanish", english))
        for text in side
        if text not in other
    ]
    return Pairs([text for text, _ in texts], [name for _, name in texts], pairs.name)
