"""Loading of labeled texts, or pairs of texts, for text classification."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch

from transom.config.data import DataConfig, LabeledFilesConfig, PhrasebookConfig
from transom.data.batch import Indices, LabeledTextBatch, MultiLabelTextBatch, batch_by_tokens, sequence_lengths
from transom.data.labeled.class_labels import LABEL_SEPARATOR, LabelSets, encode_label_sets, encode_labels, split_labels
from transom.data.labeled.text_pairs import Text, TokenPair, TokenRow, encode_texts, join_pair, n_tokens, surround, truncate
from transom.data.pairs.pairs import Pairs
from transom.data.sampler import FULL_BATCH, MicroBatching, iterate_epochs, plan_epoch
from transom.data.split import Splits, holdout, read_splits
from transom.data.synthetic.phrasebook.generate import generate_phrasebook
from transom.data.text.table_columns import FIRST, LABEL, SECOND, TEXT
from transom.data.text.tabular import read_table
from transom.data.text.text_io import expand_path
from transom.data.tokenizer.special_tokens import OWN_TOKENS, SpecialTokens
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import AmbiguousLabelsError, ConfigError, DataError

EncodedLabels = Sequence[int] | LabelSets
"""Class index of each text, or its labels as 0 and 1 per class."""

VALID_FRACTION = 0.1
"""Fraction of the texts that is held out for validation if the recipe names no validation texts."""


@dataclass(frozen=True)
class LabeledTexts(Pairs):
    """Texts as ``source``, and their classes as ``target``.

    Attributes:
        multi_label: whether a text has any number of labels, which are joined by ``|`` in ``target`` in the order of their names.
        second: second text of each pair of texts, of which ``source`` has the first; None for single texts.
    """

    multi_label: bool = False
    second: list[str] | None = None

    @property
    def inputs(self) -> list[Text]:
        """Texts or pairs of texts, as a classifier reads them."""
        return [*self.source] if self.second is None else [*zip(self.source, self.second, strict=True)]

    @property
    def keys(self) -> list[str]:
        """Each text, or both texts of each pair, as one string."""
        return [*map(join_pair, self.inputs)]

    @property
    def all_texts(self) -> list[str]:
        """All texts, and then the second texts of pairs."""
        return [*self.source, *(self.second or ())]

    @property
    def columns(self) -> tuple[list[str], ...]:
        """All columns, which identify the data set."""
        return (*super().columns, *([] if self.second is None else [self.second]))

    def select(self, samples: list[int], name: str) -> Self:
        """Return the texts at these indices with their line numbers, as a data set of this name."""
        return replace(super().select(samples, name), second=None if self.second is None else [self.second[i] for i in samples])

    @classmethod
    def of(cls, texts: Pairs) -> "LabeledTexts":
        """Return texts with one class each, which another task has read as pairs, as labeled texts."""
        return texts if isinstance(texts, cls) else cls(**vars(texts))


def load_labeled_texts(data: DataConfig, base: Path, multi_label: bool | None = None) -> Splits[LabeledTexts]:
    """Read or generate the labeled texts of a recipe.

    Args:
        data: the recipe's data section.
        base: the recipe's folder, to which ``data.root`` is relative.
        multi_label: whether ``|`` separates several labels; None decides by the files.

    Raises:
        DataError: a file cannot be read, a text has no class, or there are too few texts to split.
        AmbiguousLabelsError: ``multi_label`` is None, and labels contain ``|``.
        ConfigError: only some of the files have several labels per text, or pairs of texts.
    """
    root = base / expand_path(data.root)
    if isinstance(data.generate, PhrasebookConfig):
        return Splits(*map(_language_identification, generate_phrasebook(data.generate).parts.values()))
    splits = read_splits(
        data,
        lambda files: read_labeled_texts(files, root, multi_label),
        lambda texts: holdout(texts, texts.keys, VALID_FRACTION, "texts"),
    )
    paired = [part.name for part in splits.parts.values() if part.second is not None]
    if others := [part.name for part in splits.parts.values() if paired and part.second is None]:
        raise ConfigError(f"{others[0]}: expected pairs of texts as in {paired[0]}, found one text per record; set its second_field too")
    several = [part.name for part in splits.parts.values() if part.multi_label]
    if others := [part.name for part in splits.parts.values() if several and not part.multi_label]:
        raise ConfigError(
            f"{others[0]}: expected arrays of labels as in {several[0]}, found one class per text; use --multi-label"
            " (data.multi_label = true in a recipe) if texts have any number of labels"
        )
    return splits


def read_labeled_texts(files: LabeledFilesConfig, root: Path, multi_label: bool | None = None) -> LabeledTexts:
    """Read labeled texts.

    Args:
        files: the file and its columns.
        root: folder to which the file is relative.
        multi_label: whether ``|`` separates several labels, and a text may have none; None reads arrays in JSON as several labels.

    Raises:
        DataError: the file cannot be read, or a record lacks a text or its class.
        AmbiguousLabelsError: ``multi_label`` is None, and labels contain ``|``.
        ConfigError: the file's format is unknown, or a field does not fit the format.
    """
    path, is_paired = root / expand_path(files.file), files.second_field is not None
    columns = (FIRST, SECOND, LABEL) if is_paired else (TEXT, LABEL)
    fields = [files.text_field, *([files.second_field] if is_paired else []), files.label_field]
    joint = None if multi_label is False else LABEL_SEPARATOR
    table = read_table(path, columns, fields, files.header, numbers_as_text=True, joined_by=joint)
    (texts, *second, labels), notes = table.columns, table.notes
    labels = [label.strip() for label in labels]
    if multi_label is None and table.n_arrays:
        multi_label, notes = True, (*notes, "the labels are arrays: a text has any number of labels")
    if multi_label is None:
        _reject_separators(path, labels)
    problem = "expected two texts and their class, found no" if is_paired else "expected a text and its class, found no"
    for line, text, *other, label in zip(table.lines, texts, *second, labels, strict=True):
        blank = [what for what, cell in (("text", text), *(("second text", each) for each in other)) if not cell.strip()]
        if missing := blank or ([] if label or multi_label else ["class"]):
            raise DataError(f"{path}:{line}: {problem} {missing[0]}; remove the line")
    if multi_label:
        labels = [LABEL_SEPARATOR.join(split_labels(label)) for label in labels]
    return LabeledTexts(texts, labels, str(path), table.lines, notes, bool(multi_label), second[0] if is_paired else None)


def _reject_separators(path: Path, labels: Sequence[str]) -> None:
    """Raise AmbiguousLabelsError if labels contain ``|``, which may separate labels or belong to the name of a class."""
    joined = [label for label in labels if LABEL_SEPARATOR in label]
    if not joined:
        return
    parts = {part for label in joined for part in split_labels(label)}
    n_alone = len(parts.intersection(labels))
    found = (
        f"{joined[0][:60]!r} and other labels with {LABEL_SEPARATOR}: {len(joined) / len(labels):.1%} of the labels,"
        f" {len(set(joined)):,} different ones of {len(parts):,} parts, of which {n_alone:,} are also labels on their own"
    )
    raise AmbiguousLabelsError(
        f"{path}: expected labels without {LABEL_SEPARATOR}, found {found}; use --multi-label if it separates the labels of a text, or"
        " --no-multi-label if it belongs to the name of a class (data.multi_label in a recipe)",
        f"{path} has {found}. Does {LABEL_SEPARATOR} separate several labels of a text?",
    )


def encode_targets(texts: Pairs, classes: Sequence[str]) -> EncodedLabels:
    """Return the class index of each text, or its labels as 0 and 1 per class if texts have any number of labels.

    Raises:
        DataError: a class is not among ``classes``.
    """
    if isinstance(texts, LabeledTexts) and texts.multi_label:
        return encode_label_sets(texts.target, classes, texts)
    return encode_labels(texts.target, classes, texts)


def labeled_text_batch(
    rows: Sequence[TokenRow], labels: Sequence[int], samples: Sequence[int], special: SpecialTokens = OWN_TOKENS, n_token_types: int = 0
) -> LabeledTextBatch:
    """Build a batch of labeled texts, with the special tokens of the tokenizer around each text.

    Args:
        rows: token ids of each text, without special tokens.
        labels: class index of each text.
        samples: index of each text in the data set.
        special: special tokens of the tokenizer.
        n_token_types: number of token types of the model.
    """
    return LabeledTextBatch(surround(rows, special, n_token_types), torch.tensor(labels), tuple(samples))


def _any_batch(
    rows: Sequence[TokenRow], labels: EncodedLabels, samples: Sequence[int], special: SpecialTokens, n_token_types: int
) -> LabeledTextBatch | MultiLabelTextBatch:
    """Build a batch of texts with one class each or with any number of labels each."""
    if isinstance(labels, np.ndarray):
        return MultiLabelTextBatch(surround(rows, special, n_token_types), torch.from_numpy(labels).float(), tuple(samples))
    return labeled_text_batch(rows, labels, samples, special, n_token_types)


def _select_labels(labels: EncodedLabels, rows: Sequence[int]) -> EncodedLabels:
    return labels[list(rows)] if isinstance(labels, np.ndarray) else [labels[i] for i in rows]


def labeled_text_batches(
    rows: Sequence[TokenRow],
    labels: EncodedLabels,
    max_seq_len: int,
    batch_tokens: int,
    special: SpecialTokens = OWN_TOKENS,
    n_token_types: int = 0,
) -> list[Any]:
    """Batch texts of similar length for one pass such as validation; longer texts are truncated.

    Args:
        rows: token ids of each text, without special tokens.
        labels: class index of each text, or its labels as 0 and 1 per class.
        max_seq_len: maximum number of tokens per text, special tokens included.
        batch_tokens: maximum number of tokens per batch, padding included; a longer text is a batch of its own.
        special: special tokens of the tokenizer.
        n_token_types: number of token types of the model.
    """
    cut = [truncate(row, max_seq_len, special) for row in rows]
    lengths = _lengths(cut, special)
    order = np.argsort(lengths, kind="stable")
    return [
        _any_batch([cut[i] for i in part], _select_labels(labels, part), part, special, n_token_types)
        for part in map(np.ndarray.tolist, batch_by_tokens(order, lengths, batch_tokens))
    ]


def _lengths(rows: Sequence[TokenRow], special: SpecialTokens) -> Indices:
    """Return the number of tokens of each row, special tokens included."""
    return np.fromiter((n_tokens(row, special) for row in rows), np.int64, len(rows))


def reject_too_long(texts: Pairs, rows: Sequence[TokenRow], max_seq_len: int, special: SpecialTokens) -> None:
    """Raise an error if a text is longer than the context window.

    Args:
        texts: labeled texts.
        rows: token ids of each text, without special tokens.
        max_seq_len: maximum number of tokens per text, including special tokens.
        special: special tokens of the tokenizer.

    Raises:
        DataError: a text has more than ``max_seq_len`` tokens.
    """
    for sample, row in enumerate(rows):
        if (n := n_tokens(row, special)) > max_seq_len:
            raise DataError(
                f"{texts.describe_sample(sample)}: expected at most model.max_seq_len = {max_seq_len} tokens, special tokens included,"
                f" found {n}; shorten it, or set data.too_long = 'truncate' or 'drop'"
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
        texts: LabeledTexts,
        tokenizer: Tokenizer,
        classes: Sequence[str],
        *,
        max_seq_len: int,
        batch_tokens: int,
        seed: int,
        too_long: Literal["truncate", "drop", "refuse"] = "truncate",
        word_dropout: float = 0.0,
        micro_batching: MicroBatching = FULL_BATCH,
        n_token_types: int = 0,
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
            n_token_types: number of token types of the model.

        Raises:
            DataError: no text is left, a text has an unknown class, or a text is too long and ``too_long`` is "refuse".
            ConfigError: a text is longer than a batch.
        """
        rows, special = encode_texts(tokenizer, texts.inputs), tokenizer.special_tokens
        self.texts, self.max_seq_len = texts, max_seq_len
        self.lengths, self._special_tokens, self._n_token_types = sequence_lengths(rows), special, n_token_types
        if too_long == "refuse":
            reject_too_long(texts, rows, max_seq_len, special)
        too_long_rows = _lengths(rows, special) > max_seq_len
        self.n_too_long = int(too_long_rows.sum())
        self._kept = list(range(len(rows))) if too_long == "truncate" else np.flatnonzero(~too_long_rows).tolist()
        self.n_samples = len(self._kept)
        if not self._kept:
            raise DataError(f"{texts.name}: expected texts of at most {max_seq_len} tokens, found none; raise model.max_seq_len")
        self._rows = [truncate(rows[i], max_seq_len, special) for i in self._kept]
        self._labels = _select_labels(encode_targets(texts, classes), self._kept)
        self._lengths = _lengths(self._rows, special)
        if (longest := int(self._lengths.max())) > batch_tokens:
            raise ConfigError(
                f"training.batch_tokens: expected at least {longest}, the tokens of the longest text, found {batch_tokens}; raise it or"
                " lower model.max_seq_len"
            )
        self._batch_tokens, self._seed, self._word_dropout, self._micro_batching = batch_tokens, seed, word_dropout, micro_batching

    def describe_sample(self, sample: int) -> str:
        """Return the line number of a sample as text, for messages."""
        return f"line {self.texts.line_number(sample)}"

    def batches_from(self, position: int) -> Iterator[tuple[int, list[LabeledTextBatch | MultiLabelTextBatch]]]:
        """Yield the position after each batch, which a checkpoint stores, and the batch as micro-batches."""
        for end, epoch, batch in iterate_epochs(position, self.n_samples, self._plan):
            yield end, [self._batch(epoch, part.tolist()) for part in self._micro_batching.split(batch)]

    def _plan(self, epoch: int) -> list[Indices]:
        return plan_epoch(self._lengths, self._lengths, batch_tokens=self._batch_tokens, seed=self._seed, epoch=epoch)

    def _batch(self, epoch: int, rows: list[int]) -> LabeledTextBatch | MultiLabelTextBatch:
        samples = [self._kept[i] for i in rows]
        keys = [(self._seed, epoch, sample) for sample in samples]
        read = [apply_word_dropout(self._rows[i], self._word_dropout, key) for i, key in zip(rows, keys, strict=True)]
        return _any_batch(read, _select_labels(self._labels, rows), samples, self._special_tokens, self._n_token_types)


def apply_word_dropout(row: TokenRow, p: float, key: tuple[int, ...]) -> TokenRow:
    """Drop each token of a text with probability ``p`` (word dropout, Iyyer et al. 2015).

    If no token of a text would be left, all its tokens are kept. The result depends only on the arguments.

    Args:
        row: token ids of the text, or of both texts of a pair.
        p: probability of dropping a token.
        key: integers that determine the random numbers, such as seed, epoch and sample.
    """
    if not p:
        return row
    if isinstance(row, TokenPair):
        return TokenPair(*(_drop_words(text, p, (*key, number)) for number, text in enumerate((row.first, row.second))))
    return _drop_words(row, p, key)


def _drop_words(row: Sequence[int], p: float, key: tuple[int, ...]) -> Sequence[int]:
    bits = np.random.Philox(np.random.SeedSequence(key)).random_raw(len(row))
    return [token for token, kept in zip(row, bits >= p * 2.0**64, strict=True) if kept] or row


def _language_identification(pairs: Pairs) -> LabeledTexts:
    """Turn the phrasebook into language identification: each sentence once, labeled by its language, without those in both."""
    english, spanish = (dict.fromkeys(side) for side in (pairs.source, pairs.target))
    texts = [
        (text, name)
        for side, name, other in ((english, "English", spanish), (spanish, "Spanish", english))
        for text in side
        if text not in other
    ]
    return LabeledTexts([text for text, _ in texts], [name for _, name in texts], pairs.name)
