"""Tagged sentences, and a reader of their files, which are in the format of CoNLL 2003."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from transom.data.text.text_io import read_lines
from transom.errors import DataError
from transom.tasks.tagging.entities import OUTSIDE, first_invalid, scheme_of, to_iob2, unexpected_tag

DOCUMENT = "-DOCSTART-"
"""First word of a line that separates documents."""

Words = Sequence[str]

_MARK = "\u0300"
_LETTERS = rf"\w[\w{_MARK}]*"

WORD_PATTERNS = {"punctuation": re.compile(rf"{_LETTERS}(?:['’-]{_LETTERS})*|[^\w\s]{_MARK}*"), "spaces": re.compile(r"\S+")}
"""Pattern of a word for each kind of word splitting.

With "punctuation", a word consists of letters and digits, which apostrophes and hyphens may join, or of a single other character. With
"spaces", a word consists of any characters except whitespace. Combining marks, such as the vowel signs of Hindi, belong to the previous
character. Before matching, every combining mark is replaced by U+0300.
"""


@dataclass(frozen=True)
class TaggedSentences:
    """Sentences with a tag for each word.

    Attributes:
        words: words of each sentence.
        tags: tags of the words of each sentence.
        name: origin of the sentences, for messages.
        lines: line of each sentence's first word in its file, from 1; None for generated sentences.
        n_converted: number of IOB1 tags converted to IOB2 in each sentence; None if tags were not checked.
    """

    words: list[Words]
    tags: list[Words]
    name: str
    lines: list[int] | None = None
    n_converted: list[int] | None = None

    @classmethod
    def from_pairs(cls, sentences: Iterable[tuple[Words, Words]], name: str) -> "TaggedSentences":
        """Build tagged sentences from generated pairs of the words and the tags of a sentence."""
        read = list(sentences)
        return cls([words for words, _ in read], [tags for _, tags in read], name)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def texts(self) -> list[str]:
        """The sentences as texts, in which spaces join the words."""
        return list(map(" ".join, self.words))

    def describe_sample(self, sample: int, word: int = 0) -> str:
        """Describe the location of a word of a sentence by its file and line, for messages."""
        return f"{self.name}, sentence {sample + 1}" if self.lines is None else f"{self.name}:{self.lines[sample] + word}"

    def select(self, samples: list[int], name: str) -> "TaggedSentences":
        lines, n_converted = (None if each is None else [each[i] for i in samples] for each in (self.lines, self.n_converted))
        return TaggedSentences([self.words[i] for i in samples], [self.tags[i] for i in samples], name, lines, n_converted)

    def encode_labels(self, classes: Sequence[str]) -> list[list[int]]:
        """Return the labels of the words of each sentence. The label of a word is the index of its tag in ``classes``.

        Raises:
            DataError: a tag is not among the classes.
        """
        numbers = {label: number for number, label in enumerate(classes)}
        for sample, tags in enumerate(self.tags):
            for word, tag in enumerate(tags):
                if tag not in numbers:
                    known = ", ".join(map(repr, classes[:10])) + (", ..." if len(classes) > 10 else "")
                    raise DataError(f"{self.describe_sample(sample, word)}: expected one of the tags {known}, found {tag[:50]!r}")
        return [[numbers[tag] for tag in tags] for tags in self.tags]


def word_spans(text: str, split: str) -> list[tuple[int, int]]:
    """Return the index of the first character of each word of a text, and the index after its last character.

    Args:
        text: any text.
        split: a key of ``WORD_PATTERNS``.
    """
    if not text.isascii():
        text = "".join(_MARK if unicodedata.category(character).startswith("M") else character for character in text)
    return [match.span() for match in WORD_PATTERNS[split].finditer(text)]


def fingerprint(*parts: TaggedSentences) -> str:
    """Return a hash of all words and tags in order, by which a resumed run detects changed data."""
    total = blake2b(digest_size=16)
    for part in parts:
        for words, tags in zip(part.words, part.tags, strict=True):
            total.update("".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)).encode() + b"\n")
        total.update(b"\0")
    return total.hexdigest()


def read_tagged(path: Path, word_column: int = 0, tag_column: int = -1) -> TaggedSentences:
    """Read tagged sentences from a file with a word and its tag per line, and an empty line after each sentence.

    The file may be gzipped. Columns are separated by tabs if the first line contains one, otherwise by spaces. All lines have the same
    number of columns, except lines that start with ``-DOCSTART-``, which end a sentence and are skipped. Entity tags are checked. IOB1 tags
    are converted to IOB2, and IOBES tags must mark complete entities.

    Args:
        path: a UTF-8 file.
        word_column: index of the column of words, from 0; -1 is the last column.
        tag_column: index of the column of tags, from 0; -1 is the last column.

    Raises:
        DataError: the file cannot be read, has no sentence, or has a malformed line.
    """
    blocks = [list(block) for is_sentence, block in groupby(_rows(path, word_column, tag_column), bool) if is_sentence]
    if not blocks:
        raise DataError(f"{path}: expected a word and its tag per line, found none")
    read = [[row for row in block if row is not None] for block in blocks]
    words: list[Words] = [[row.word for row in block] for block in read]
    return _validate_tags(
        TaggedSentences(words, [[row.tag for row in block] for block in read], str(path), [block[0].line for block in read])
    )


class _Row(NamedTuple):
    line: int
    word: str
    tag: str


def _rows(path: Path, word_column: int, tag_column: int) -> Iterator[_Row | None]:
    """Yield each word of a file with its line and tag, and None for each line between two sentences."""
    separator, n_columns, first = re.compile(" +"), 0, 0
    for line, text in enumerate(read_lines(path), 1):
        if text.split()[:1] in ([], [DOCUMENT]):
            yield None
            continue
        if not n_columns and "\t" in text:
            separator = re.compile("\t")
        row = [cell.strip(" ") for cell in separator.split(text.strip(" "))]
        if not n_columns:
            n_columns, first = len(row), line
            for name, column in (("word_column", word_column), ("tag_column", tag_column)):
                if n_columns < 2 or not -n_columns <= column < n_columns:
                    wanted = max(2, column + 1, -column)
                    raise DataError(
                        f"{path}:{line}: expected at least {wanted} columns, of words and tags, separated by tabs or spaces, found"
                        f" {n_columns}; add the tags or set {name}"
                    )
            if word_column % n_columns == tag_column % n_columns:
                raise DataError(
                    f"{path}:{line}: expected words and tags in two columns, found both in column {word_column}; set tag_column"
                )
        if len(row) != n_columns:
            kind = "tabs" if separator.pattern == "\t" else "spaces"
            raise DataError(
                f"{path}:{line}: expected {n_columns} columns, separated by {kind} as in line {first}, found {len(row)}; correct the line"
            )
        word, tag = row[word_column], row[tag_column]
        if not word or not tag:
            raise DataError(f"{path}:{line}: expected a word and its tag, found no {'tag' if word else 'word'}")
        yield _Row(line, word, tag)


def _validate_tags(read: TaggedSentences) -> TaggedSentences:
    """Check that the tags of a file follow their tagging scheme, and return the sentences with IOB1 tags converted to IOB2."""
    used = {tag for tags in read.tags for tag in tags}
    if (unexpected := unexpected_tag(used)) is not None:
        sample, word = next((i, tags.index(unexpected)) for i, tags in enumerate(read.tags) if unexpected in tags)
        raise DataError(
            f"{read.describe_sample(sample, word)}: expected O, B-LABEL or I-LABEL as elsewhere, found {unexpected[:50]!r}; correct the tag"
        )
    scheme = scheme_of(used)
    if scheme == "iobes":
        for sample, tags in enumerate(read.tags):
            if (at := first_invalid(tags)) is not None:
                before, found = [OUTSIDE, *tags, OUTSIDE][at : at + 2]
                raise DataError(
                    f"{read.describe_sample(sample, min(at, len(tags) - 1))}: expected complete entities (S- alone, or B- and later E-),"
                    f" found {found[:50]!r} after {before[:50]!r}; correct the tags, or use B- and I- alone"
                )
    if scheme != "iob":
        return read
    converted: list[Words] = [to_iob2(tags) for tags in read.tags]
    n_converted = [sum(a != b for a, b in zip(old, new, strict=True)) for old, new in zip(read.tags, converted, strict=True)]
    return TaggedSentences(read.words, converted, read.name, read.lines, n_converted)
