"""Sentences whose words have a tag each, as in the files of CoNLL: read from a file, checked, and cut into batches."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from transom.data.batch import MaskedBatch, Sequences
from transom.data.labeled.entities import OUTSIDE, broken, odd_tag, repaired, scheme_of
from transom.data.sampler import WHOLE, Indices, Slicing, cut_batches, lengths_of, plan_epoch, walk
from transom.data.text.text import read_lines
from transom.data.text.windows import blank
from transom.data.tokenizer.special import EOS, UNK
from transom.data.tokenizer.tokenizer import Tokenizer
from transom.errors import ConfigError, DataError

DOCUMENT = "-DOCSTART-"
"""What stands in the place of a word where a document begins."""

Words = Sequence[str]

CUTS = {"punctuation": re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]"), "spaces": re.compile(r"\S+")}
"""What is a word of a text: letters and digits, with apostrophes and hyphens inside, or any other sign; or what stands between spaces."""


@dataclass(frozen=True)
class Tagged:
    """Sentences with their tags.

    Attributes:
        words: of each sentence.
        tags: of each word.
        name: where they come from, for people.
        lines: line of each sentence's first word in its file, from 1; None where they come from no file.
        repairs: of each sentence, how many tags I- were read as B-, since they begin an entity; None where none were looked for.
    """

    words: list[Words]
    tags: list[Words]
    name: str
    lines: list[int] | None = None
    repairs: list[int] | None = None

    @classmethod
    def together(cls, sentences: Iterable[tuple[Words, Words]], name: str) -> "Tagged":
        """Collect words and their tags that come from no file."""
        read = list(sentences)
        return cls([words for words, _ in read], [tags for _, tags in read], name)

    def __len__(self) -> int:
        """Count the sentences."""
        return len(self.words)

    @property
    def texts(self) -> list[str]:
        """The sentences, a space between words."""
        return list(map(" ".join, self.words))

    def place(self, sample: int) -> str:
        """Name a sentence by its first line, for people."""
        return f"{self.name}, sentence {sample + 1}" if self.lines is None else f"{self.name}:{self.lines[sample]}"

    def take(self, samples: list[int], name: str) -> "Tagged":
        """Return some of the sentences."""
        lines, repairs = (None if each is None else [each[i] for i in samples] for each in (self.lines, self.repairs))
        return Tagged([self.words[i] for i in samples], [self.tags[i] for i in samples], name, lines, repairs)

    def numbered(self, classes: Sequence[str]) -> list[list[int]]:
        """Return the number of each word's tag.

        Raises:
            DataError: a tag is none of the classes.
        """
        numbers = {label: number for number, label in enumerate(classes)}
        for sample, tags in enumerate(self.tags):
            for place, tag in enumerate(tags):
                if tag not in numbers:
                    known = ", ".join(map(repr, classes[:10])) + (", ..." if len(classes) > 10 else "")
                    where = self.place(sample) if self.lines is None else f"{self.name}:{self.lines[sample] + place}"
                    raise DataError(f"{where}: expected one of the tags {known}, found {tag[:50]!r}")
        return [[numbers[tag] for tag in tags] for tags in self.tags]


def fingerprint(*parts: Tagged) -> str:
    """Hash words and tags in their order, so that a run can tell whether its data are the same."""
    total = blake2b(digest_size=16)
    for part in parts:
        for words, tags in zip(part.words, part.tags, strict=True):
            total.update("".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)).encode() + b"\n")
        total.update(b"\0")
    return total.hexdigest()


def read_tagged(path: Path, word_column: int = 0, tag_column: int = -1) -> Tagged:
    """Read a file of one word and its tag a line, an empty line after each sentence; it may be gzipped.

    Columns are separated by tabs if the first line has one, by spaces otherwise, and all lines have as many. Lines that begin with
    ``-DOCSTART-`` end a sentence and are left out, whatever columns they have. Tags of entities are checked: IOB1 is read as IOB2, and
    IOBES has to be whole.

    Args:
        path: a UTF-8 file.
        word_column: from 0; negative from the last one, -1.
        tag_column: likewise.

    Raises:
        DataError: the file cannot be read, has no sentence, or a line of it is not as it must be.
    """
    rows = list(_rows(path, word_column, tag_column))
    blocks = [list(block) for is_sentence, block in groupby(rows, key=lambda row: row is not None) if is_sentence]
    if not blocks:
        raise DataError(f"{path}: expected words with their tags, one a line, found none")
    read = [[row for row in block if row is not None] for block in blocks]
    lines = [block[0].line for block in read]
    words: list[Words] = [[row.word for row in block] for block in read]
    return _checked(Tagged(words, [[row.tag for row in block] for block in read], str(path), lines))


class _Row(NamedTuple):
    line: int
    word: str
    tag: str


def _rows(path: Path, word_column: int, tag_column: int) -> Iterator[_Row | None]:
    """Yield the words of a file with their tags; None where a sentence ends."""
    cells, n_columns, first = re.compile(" +"), 0, 0
    for line, text in enumerate(read_lines(path), 1):
        if text.split()[:1] in ([], [DOCUMENT]):
            yield None
            continue
        if not n_columns and "\t" in text:
            cells = re.compile("\t")
        row = [cell.strip(" ") for cell in cells.split(text.strip(" "))]
        if not n_columns:
            n_columns, first = len(row), line
            for name, column in (("word_column", word_column), ("tag_column", tag_column)):
                if n_columns < 2 or not -n_columns <= column < n_columns:
                    wanted = max(2, column + 1, -column)
                    raise DataError(
                        f"{path}:{line}: expected at least {wanted} columns, of words and tags, separated by tabs or spaces, found"
                        f" {n_columns}; add the tags or set {name}"
                    )
        if len(row) != n_columns:
            raise DataError(f"{path}:{line}: expected {n_columns} columns, as in line {first}, found {len(row)}")
        word, tag = row[word_column], row[tag_column]
        if not word or not tag:
            raise DataError(f"{path}:{line}: expected a word and its tag, found no {'tag' if word else 'word'}")
        yield _Row(line, word, tag)


def _checked(read: Tagged) -> Tagged:
    """Check the tags of a file against their scheme, and repair those of IOB1."""
    assert read.lines is not None
    used = {tag for tags in read.tags for tag in tags}
    if (odd := odd_tag(used)) is not None:
        sample, place = next((i, tags.index(odd)) for i, tags in enumerate(read.tags) if odd in tags)
        raise DataError(
            f"{read.name}:{read.lines[sample] + place}: expected O, B-LABEL or I-LABEL as elsewhere, found {odd[:50]!r}; correct it"
        )
    scheme = scheme_of(used)
    if scheme == "iobes":
        for line, tags in zip(read.lines, read.tags, strict=True):
            if (at := broken(tags)) is not None:
                before, found = [OUTSIDE, *tags, OUTSIDE][at : at + 2]
                raise DataError(
                    f"{read.name}:{line + min(at, len(tags) - 1)}: expected whole entities, S- or B- to E-, found {found[:50]!r}"
                    f" after {before[:50]!r}; correct the tags, or use B- and I- alone"
                )
    if scheme != "iob":
        return read
    whole: list[Words] = [repaired(tags) for tags in read.tags]
    repairs = [sum(a != b for a, b in zip(old, new, strict=True)) for old, new in zip(read.tags, whole, strict=True)]
    return Tagged(read.words, whole, read.name, read.lines, repairs)


class Window(NamedTuple):
    """What is read of a sentence at once: all of it, or some of the words of one that is longer than the model reads.

    Attributes:
        sample: the sentence.
        start: its first word that is read.
        tokens: of the words, without special symbols.
        firsts: of each word, the place of its first token.
    """

    sample: int
    start: int
    tokens: list[int]
    firsts: list[int]


def windows(sentences: Sequence[Words], tokenizer: Tokenizer, most: int) -> list[Window]:
    """Cut sentences between words; each word has a token at least, and of one that is too long by itself the beginning is read.

    Args:
        sentences: their words.
        tokenizer: of the words.
        most: tokens of a window, special symbols not included.
    """
    known = list(dict.fromkeys(word for words in sentences for word in words))
    space = " " if tokenizer.kind == "char" else ""  # which the other kinds have in their symbols
    pieces = {word: row[:most] or [UNK] for word, row in zip(known, tokenizer.encode_batch([space + word for word in known]), strict=True)}
    found = list[Window]()
    for sample, words in enumerate(sentences):
        window = Window(sample, 0, [], [])
        for place, word in enumerate(words):
            if len(window.tokens) + len(pieces[word]) > most:
                found.append(window)
                window = Window(sample, place, [], [])
            window.firsts.append(len(window.tokens))
            window.tokens.extend(pieces[word])
        if words:
            found.append(window)
    return found


class TaggedBatch(MaskedBatch):
    """Sentences, of which the first token of each word has a label and counts."""


def tagged_batch(
    read: Sequence[Window], rows: Sequence[Sequence[int]], labels: Sequence[Sequence[int]], samples: Sequence[int]
) -> TaggedBatch:
    """Make a batch of windows, each after its start symbol.

    Args:
        read: the windows.
        rows: the tokens that the model reads of them.
        labels: numbers of the tags of each one's words.
        samples: numbers of the windows.
    """
    source = Sequences.pad([[EOS, *row] for row in rows])
    numbers, counted = torch.zeros_like(source.tokens), torch.zeros_like(source.tokens, dtype=torch.bool)
    for row, (window, of_words) in enumerate(zip(read, labels, strict=True)):
        places = torch.tensor(window.firsts) + 1
        numbers[row, places], counted[row, places] = torch.tensor(of_words), True
    return TaggedBatch(source, numbers, counted, tuple(samples))


def labels_of(read: Sequence[Window], numbers: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """Return the labels of each window's words, out of those of the sentences' words."""
    return [numbers[window.sample][window.start : window.start + len(window.firsts)] for window in read]


def reading_batches(read: Sequence[Window], labels: Sequence[Sequence[int]] | None, batch_tokens: int) -> list[TaggedBatch]:
    """Batch windows of like length for reading each once; ``labels`` as in ``labels_of``, None where they are not known."""
    if not read:
        return []
    lengths = lengths_of([window.tokens for window in read]) + 1
    order = np.argsort(lengths, kind="stable")
    batches = list[TaggedBatch]()
    for part in map(np.ndarray.tolist, cut_batches(order, lengths, batch_tokens)):
        chosen = [read[i] for i in part]
        of_words = [[0] * len(window.firsts) for window in chosen] if labels is None else [labels[i] for i in part]
        batches.append(tagged_batch(chosen, [window.tokens for window in chosen], of_words, part))
    return batches


class TaggedLoader:
    """Training batches without end, from any position.

    A position is the number of windows read since the start of training, over all shards: the whole state of the loader.

    Attributes:
        texts: the sentences.
        windows: of them, which are the samples.
        n_samples: windows: an epoch.
    """

    def __init__(
        self,
        texts: Tagged,
        tokenizer: Tokenizer,
        classes: Sequence[str],
        *,
        max_seq_len: int,
        batch_tokens: int,
        seed: int,
        token_dropout: float = 0.0,
        slicing: Slicing = WHOLE,
    ) -> None:
        """Encode the sentences.

        Args:
            texts: with their tags.
            tokenizer: of the words.
            classes: the tags by number.
            max_seq_len: most tokens of a window, its start symbol included.
            batch_tokens: most tokens of a batch, padding included, over all shards and slices.
            seed: of the order, and of the tokens that are blanked.
            token_dropout: share of the tokens that are blanked, a mean.
            slicing: of every batch.

        Raises:
            DataError: a tag is none of the classes.
            ConfigError: a window is longer than a batch.
        """
        self.texts, self.windows = texts, windows(texts.words, tokenizer, max_seq_len - 1)
        self.n_samples = len(self.windows)
        self._labels = labels_of(self.windows, texts.numbered(classes))
        self._lengths = lengths_of([window.tokens for window in self.windows]) + 1
        if (longest := int(self._lengths.max())) > batch_tokens:
            raise ConfigError(
                f"training.batch_tokens: expected at least {longest}, the tokens of the longest sentence, found {batch_tokens}; raise it or"
                " lower model.max_seq_len"
            )
        self._batch_tokens, self._seed, self._token_dropout, self._slicing = batch_tokens, seed, token_dropout, slicing

    def batches_from(self, position: int) -> Iterator[tuple[int, list[TaggedBatch]]]:
        """Yield each batch, as slices, with the position after it: what a checkpoint stores to continue from there."""
        for end, epoch, batch in walk(position, self.n_samples, self._plan):
            yield end, [self._batch(epoch, part.tolist()) for part in self._slicing.of(batch)]

    def place(self, sample: int) -> str:
        """Name the sentence of a window, for people."""
        return self.texts.place(self.windows[sample].sample)

    def _plan(self, epoch: int) -> list[Indices]:
        return plan_epoch(self._lengths, self._lengths, batch_tokens=self._batch_tokens, seed=self._seed, epoch=epoch)

    def _batch(self, epoch: int, samples: list[int]) -> TaggedBatch:
        read = [self.windows[i] for i in samples]
        rows = [self._blanked(window.tokens, (self._seed, epoch, i)) for i, window in zip(samples, read, strict=True)]
        return tagged_batch(read, rows, [self._labels[i] for i in samples], samples)

    def _blanked(self, tokens: list[int], key: tuple[int, int, int]) -> list[int]:
        if not self._token_dropout:
            return tokens
        found: list[int] = blank(np.array(tokens, np.int32), self._token_dropout, key).tolist()
        return found
