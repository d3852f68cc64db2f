"""Documents for language modeling, read from files, from folders or from the Python standard library."""

import re
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

from transom.config.data import StandardLibraryConfig, TextDataConfig, TextFilesConfig
from transom.data.split import Splits, holdout, read_splits, text_hash
from transom.data.text.table_columns import TEXT
from transom.data.text.tabular import SUFFIXES, read_table
from transom.data.text.text_io import expand_path, read_lines
from transom.errors import DataError
from transom.files.limits import MAX_DOCUMENT_LINE_BYTES
from transom.files.message import phrase

VALID_FRACTION = 0.05
"""Fraction of the text that is held out for validation if the recipe names no validation text."""

MAX_LINE_START_DISTANCE = 200
"""Maximum number of characters before the start of an excerpt that are skipped for it to start with a line."""

_PARAGRAPHS, _LINE_ENDS = re.compile(r"\n(?:[^\S\n]*\n)+"), re.compile(r"\n")


@dataclass(frozen=True)
class Documents:
    """Data set of independent texts.

    Attributes:
        texts: text of each document.
        origins: file of each document, with the line number at which the document starts if the file contains several.
        name: origin of all documents, for messages.
        notes: messages about what was skipped or recognized while reading the files.
    """

    texts: list[str]
    origins: list[str]
    name: str
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def n_bytes(self) -> int:
        """Total size of the texts in UTF-8 bytes."""
        return sum(len(text.encode()) for text in self.texts)

    def excerpts(self, n: int, length: int) -> list[str]:
        """Return ``n`` different excerpts, fewer if the text has no more: beginnings of documents, then later lines or words of them.

        >>> Documents(["one two three four"], ["a.txt"], "a.txt").excerpts(2, 8)
        ['one two ', 'four']

        Args:
            n: maximum number of excerpts.
            length: length of an excerpt in characters.
        """
        if not n or not self.texts:
            return []
        different, found = list(dict.fromkeys(self.texts)), dict[str, None]()
        n_parts = -(-n // len(different))
        for part in range(n_parts):
            for text in different:
                start = _next_start(text, part * len(text) // n_parts)
                if excerpt := text[start : start + length]:
                    found[excerpt] = None
        return list(found)[:n]

    def select(self, samples: Sequence[int], name: str) -> "Documents":
        """Return the documents at the given indices as a data set with the given name."""
        notes = self.notes if name == self.name else ()
        return Documents([self.texts[i] for i in samples], [self.origins[i] for i in samples], name, notes)

    def slice(self, start: float, end: float) -> "Documents":
        """Return the text between two positions, which are fractions of the total number of characters.

        A document that contains one of the positions is cut there.
        """
        total = sum(map(len, self.texts))
        first, last, done = int(start * total), int(end * total), 0
        texts, origins = list[str](), list[str]()
        for text, place in zip(self.texts, self.origins, strict=True):
            kept = text[max(first - done, 0) : max(last - done, 0)]
            done += len(text)
            if kept.strip():
                texts.append(kept)
                origins.append(place)
        name = phrase("data.slice", "{start} to {end} of {name}", start=f"{start:.4g}", end=f"{end:.4g}", name=self.name)
        return Documents(texts, origins, name, self.notes)


def _next_start(text: str, position: int) -> int:
    """Return where the first line after a position starts, or the first word if the line is long."""
    if not position:
        return 0
    soon = text[position : position + MAX_LINE_START_DISTANCE]
    return position + soon.find("\n" if "\n" in soon else " ") + 1


def load_text(data: TextDataConfig, base: Path) -> Splits[Documents]:
    """Read the documents of a recipe.

    Args:
        data: the recipe's data section.
        base: the recipe's folder, to which ``data.root`` is relative.

    Raises:
        DataError: a file cannot be read, or the text is too short to hold out validation text.
    """
    root = base / expand_path(data.root)
    if data.generate is not None:
        return Splits(*split_validation(read_standard_library(data.generate)))
    return read_splits(data, lambda files: read_documents(files, root), split_validation)


def read_documents(files: TextFilesConfig, root: Path) -> Documents:
    r"""Read documents from text files and replace every line end by ``\n``.

    Args:
        files: the files to read and the unit of text that forms a document.
        root: folder to which the paths in ``files`` are relative.

    Raises:
        DataError: a file is missing, is not UTF-8 or contains NUL characters, or the files contain no text.
    """
    texts, origins, empty = list[str](), list[str](), list[str]()
    names, paths, notes = _names(files), list_files(files, root), list[str]()
    for path in paths:
        n_before = len(texts)
        try:
            for place, text in _split_documents(path, files, notes):
                if text.strip():
                    texts.append(text)
                    origins.append(place)
        except DataError as error:
            if path in (root / expand_path(name) for name in names):
                raise
            raise DataError(f"{error}; or exclude the file: select suffixes (--suffix .txt), or name other files") from error
        if len(texts) == n_before:
            empty.append(path.name)
    if empty:
        notes.append(
            phrase(
                "notes.empty_files",
                "skipped {number} of {total} files, which have no text: {examples}",
                number=len(empty),
                total=len(paths),
                examples=f"{', '.join(empty[:5])}{', ...' * (len(empty) > 5)}",
            )
        )
    found = Documents(texts, origins, ", ".join(names), tuple(notes))
    if files.start > 0 or files.end < 1:
        found = found.slice(files.start, files.end)
    if not found.texts:
        raise DataError(f"{', '.join(str(root / name) for name in names)}: expected some text, found none; name other files")
    return found


def list_files(files: TextFilesConfig, root: Path) -> list[Path]:
    """List the files that a recipe names, and the matching files of the folders that it names.

    Raises:
        DataError: a folder contains no file with a matching suffix.
    """
    return [path for name in _names(files) for path in _files_in(root / expand_path(name), files.suffixes)]


def read_standard_library(config: StandardLibraryConfig) -> Documents:
    """Read source files of the running Python's standard library, one document per file, sorted by name.

    Tests are excluded. Of the other files, the ``config.n_files`` files with the smallest hashes are read.

    Raises:
        DataError: the source files are not installed.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    version = f"the standard library of Python {sys.version_info.major}.{sys.version_info.minor}"
    found = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if not _EXCLUDED_FOLDERS.intersection(name.parts):
            with tokenize.open(path) as file:  # decodes by the encoding that the file declares
                text = file.read()
            if text.strip() and "\0" not in text:
                found[name.as_posix()] = text
    if not found:
        raise DataError(f"{root}: expected the standard library's source files, found none; name your own text with --text")
    chosen = sorted(sorted(found, key=text_hash)[: config.n_files])
    return Documents([found[name] for name in chosen], chosen, version)


_EXCLUDED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
"""Names of folders inside the standard library whose files are not read."""


def split_validation(documents: Documents) -> tuple[Documents, Documents]:
    """Split documents into training and validation documents.

    Several documents are split by a hash of their texts. A single document is cut in two, and its end becomes the validation text.

    Raises:
        DataError: the text is too short to split, or all documents are equal.
    """
    if len(documents) == 1:
        parts = documents.slice(0.0, 1 - VALID_FRACTION), documents.slice(1 - VALID_FRACTION, 1.0)
        if not all(part.texts for part in parts):
            raise DataError(
                f"{documents.name}: expected enough text to split off validation text, found too little; set data.valid or add text"
            )
        return parts
    return holdout(documents, documents.texts, VALID_FRACTION, "documents")


def split_parts(text: str, unit: Literal["paragraph", "line"]) -> list[str]:
    r"""Split a text into consecutive paragraphs or lines, each with the blank lines or the line end after it.

    >>> split_parts("one\ntwo\n\nthree\n", "paragraph"), split_parts("one\ntwo", "line")
    (['one\ntwo\n\n', 'three\n'], ['one\n', 'two'])
    """
    breaks = _PARAGRAPHS if unit == "paragraph" else _LINE_ENDS
    places = [0, *(found.end() for found in breaks.finditer(text) if 0 < found.end() < len(text)), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def _names(files: TextFilesConfig) -> list[str]:
    return [files.files] if isinstance(files.files, str) else files.files


def _files_in(path: Path, suffixes: Sequence[str] | None) -> list[Path]:
    """Return the path itself if it is a file, or the visible files below a folder that have a matching suffix, sorted by path."""
    if not path.is_dir():
        return [path]
    shown = [file for file in sorted(path.rglob("*")) if not any(part.startswith(".") for part in file.relative_to(path).parts)]
    files = [file for file in shown if file.is_file()]
    wanted = [file for file in files if suffixes is None or file.name.removesuffix(".gz").endswith(tuple(suffixes))]
    if not wanted:
        what = "a file" if suffixes is None else f"a file that ends with {' or '.join(suffixes)}"
        raise DataError(f"{path}: expected {what}, found none in this folder; name another folder, or change suffixes")
    return wanted


def _split_documents(path: Path, files: TextFilesConfig, notes: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the origin and the text of each document in a file, and append a note on the column that is read to ``notes``."""
    suffixes = (".jsonl", ".parquet") if files.text_field is None else SUFFIXES
    if path.name.removesuffix(".gz").endswith(suffixes):
        if path.stat().st_size == 0:
            return
        table = read_table(path, (TEXT,), (files.text_field,))
        notes += [note for note in table.notes if note not in notes]
        yield from ((f"{path}:{line}", text) for line, text in zip(table.lines, *table.columns, strict=True))
        return
    lines = read_lines(path, allow_empty=True, max_line_bytes=MAX_DOCUMENT_LINE_BYTES)
    if files.document == "line":
        yield from ((f"{path}:{number}", line) for number, line in enumerate(lines, 1))
        return
    text = "\n".join(lines) + "\n"
    if files.document == "file":
        yield str(path), text
        return
    start, line = 0, 1
    for gap in [*_PARAGRAPHS.finditer(text), None]:
        end, after = (len(text), len(text)) if gap is None else gap.span()
        yield f"{path}:{line}", text[start:end].strip("\n") + "\n"
        line += text.count("\n", start, after)
        start = after
