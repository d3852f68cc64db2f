"""Recognition of the columns of tabular files (text, class, prompt, ...) and of their header."""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NamedTuple

from transom.errors import AmbiguousHeaderError, ConfigError, DataError
from transom.files.message import joined, phrase

Field = str | int
"""Name of a column, or its index starting at 0."""


class Column(NamedTuple):
    """A column that a task reads.

    Attributes:
        name: content of the column, such as "text". The column is selected by ``{name}_field`` in a recipe and by ``--{name}-field`` on the
            command line.
        aliases: usual names of such a column in lower case, the most specific first.
        is_class: True if the column contains classes, which repeat from sample to sample.
        is_language: True if the column may be named after a language, by the language's name or code.
        is_optional: True if a file may lack the column. The cells of a missing column are empty.
    """

    name: str
    aliases: tuple[str, ...]
    is_class: bool = False
    is_language: bool = False
    is_optional: bool = False

    @property
    def flag(self) -> str:
        """The command-line option that selects the column."""
        return f"--{self.name}-field"


TEXT = Column(
    "text",
    (
        *("text", "sentence", "review", "review_text", "comment", "comment_text", "utterance", "tweet", "message", "content", "body"),
        *("document", "article", "post", "headline", "title", "description", "question", "query", "input", "sms"),
    ),
)
FIRST = Column("text", ("text1", "sentence1", "question1", "premise", "text_a", "first", *TEXT.aliases))
"""First text of a pair of texts with a class."""
SECOND = Column("second", ("second", "text2", "sentence2", "question2", "hypothesis", "text_b"))
LABEL = Column(
    "label",
    (
        *("label", "labels", "class", "category", "sentiment", "intent", "emotion", "topic", "polarity", "rating", "stars", "score"),
        *("language", "lang", "genre", "tag", "target", "y"),
    ),
    is_class=True,
)
SOURCE = Column("source", ("source", "src", "source_text", "source_sentence", "original", "input", "question"), is_language=True)
TARGET = Column(
    "target", ("target", "tgt", "trg", "target_text", "target_sentence", "translation", "reference", "output", "answer"), is_language=True
)
PROMPT = Column("prompt", ("prompt", "instruction", "question", "query", "request", "user", "input"))
ANSWER = Column("answer", ("answer", "response", "completion", "output", "reply", "assistant", "target"))
CONTEXT = Column("context", ("context", "input"), is_optional=True)
"""Column of text to which a prompt refers, such as ``input`` in the Alpaca data and ``context`` in the Dolly data."""

LANGUAGES = frozenset(
    [
        "arabic",
        "bengali",
        "chinese",
        "czech",
        "danish",
        "dutch",
        "english",
        "finnish",
        "french",
        "german",
        "greek",
        "hebrew",
        "hindi",
        "hungarian",
        "indonesian",
        "italian",
        "japanese",
        "korean",
        "norwegian",
        "persian",
        "polish",
        "portuguese",
        "romanian",
        "russian",
        "spanish",
        "swedish",
        "thai",
        "turkish",
        "ukrainian",
        "vietnamese",
        "deutsch",
        "français",
        "francais",
        "español",
        "espanol",
        "italiano",
        "português",
        "portugues",
        "nederlands",
        "polski",
        "ar",
        "bn",
        "cs",
        "da",
        "de",
        "el",
        "en",
        "es",
        "fa",
        "fi",
        "fr",
        "he",
        "hi",
        "hu",
        "id",
        "it",
        "ja",
        "ko",
        "nl",
        "no",
        "pl",
        "pt",
        "ro",
        "ru",
        "sv",
        "th",
        "tr",
        "uk",
        "vi",
        "zh",
    ]
)
"""Names and ISO 639-1 codes of languages, after which a column of sentence pairs may be named."""

_NAME = re.compile(r"[^\W\d][\w.-]*(?: [\w.-]+){0,2}")
"""Pattern of a column name, which has at most three words and no punctuation except hyphens and periods."""

MIN_LINES = 10
"""Minimum number of lines for a comparison of the first line with the other lines, and for recognizing a column of classes."""


class Layout(NamedTuple):
    """Header and columns of a tabular file.

    Attributes:
        has_header: True if the first line is a header.
        indices: index of each column that the task reads, or None for an optional column that the file lacks.
        notes: messages about what was recognized or guessed.
    """

    has_header: bool
    indices: list[int | None]
    notes: list[str]


def find_layout(
    path: str, rows: Sequence[Sequence[str]], columns: Sequence[Column], fields: Sequence[Field | None], header: bool | None
) -> Layout:
    """Find the header and the columns of a tabular file.

    Args:
        path: the file, for messages.
        rows: cells of each line, including the first line. A blank line has no cells.
        columns: the columns to find, with optional columns last.
        fields: name or index that the user specified for each column, or None.
        header: True if the first line is a header, False if it is a sample, and None to decide by the cells of the first line.

    Raises:
        AmbiguousHeaderError: the first line may be a header, and ``header`` is None.
        DataError: a column cannot be found.
        ConfigError: an index is negative.
    """
    first, required = list(rows[0]), [column for column in columns if not column.is_optional]
    if header is None:
        header = any(isinstance(field, str) for field in fields) or _is_header(first, rows, required, fields)
        if not header:
            _reject_suspicious(path, rows, required, fields)
    if header:
        indices, notes = choose_columns(f"{path}:1", first, columns, fields, rows[1:])
        return Layout(True, indices, [_header_note(first, columns, indices), *notes])
    indices = [_position(path, field, place, columns[place]) for place, field in enumerate(fields)]
    if fields[0] is fields[1] is None and len(first) == len(columns) == 2 and columns[1].is_class and _classes_come_first(rows):
        note = phrase(
            "notes.no_header", "no header: the classes are in the first column, the {samples} in the second", samples=f"{columns[0].name}s"
        )
        return Layout(False, [1, 0], [note])
    return Layout(False, indices, [])


def choose_columns(
    where: str, names: Sequence[str], columns: Sequence[Column], fields: Sequence[Field | None], rows: Sequence[Sequence[str]] = ()
) -> tuple[list[int | None], list[str]]:
    """Choose columns by the user's fields, then by the usual column names, then by elimination.

    Args:
        where: the file, or the line with the column names, for messages.
        names: names of all columns of the file.
        columns: the columns to find, with optional columns last.
        fields: name or index that the user specified for each column, or None.
        rows: cells of the samples, by which a column of classes is distinguished from a column of texts.

    Returns:
        The index of each column, or None for an optional column that the file lacks, and a list of notes on columns found by elimination.

    Raises:
        DataError: a column cannot be found.
        ConfigError: an index is negative.
    """
    chosen: list[int | None] = [None if field is None else _named_index(where, names, field, columns) for field in fields]
    keys = list(map(_key, names))
    for place, column in enumerate(columns):
        if chosen[place] is None:
            chosen[place] = next((keys.index(alias) for alias in column.aliases if alias in keys and keys.index(alias) not in chosen), None)
    free = [i for i in range(len(names)) if i not in chosen]
    unknown = [place for place, index in enumerate(chosen) if index is None and not columns[place].is_optional]
    by_elimination = _by_language(keys, free, [columns[i] for i in unknown]) or _by_elimination(
        names, free, [columns[i] for i in unknown], rows
    )
    if unknown and by_elimination is None:
        found = ", ".join(names) or "(none)"
        raise DataError(
            f"{where}: expected a column {columns[unknown[0]].name!r}, found the columns {found}; {_advice(names, columns, chosen)}"
        )
    indices, notes = by_elimination or ([], [])
    for place, index in zip(unknown, indices, strict=True):
        chosen[place] = index
    return chosen, notes


def describe_columns(names: Sequence[str], columns: Sequence[Column], indices: Sequence[int | None]) -> str:
    """Describe from which column of a file each column of a task is read.

    >>> describe_columns(["id", "review", "stars"], (TEXT, LABEL), (1, 2))
    "text from 'review', label from 'stars'"
    """
    return joined(
        ", ",
        (
            phrase("notes.column", "{column} from {field}", column=column.name, field=repr(names[index].strip()))
            for column, index in zip(columns, indices, strict=True)
            if index is not None
        ),
    )


def _header_note(names: Sequence[str], columns: Sequence[Column], indices: Sequence[int | None]) -> str:
    return phrase("notes.header", "the first line is a header: {columns}", columns=describe_columns(names, columns, indices))


def _by_language(keys: Sequence[str], free: Sequence[int], unknown: Sequence[Column]) -> tuple[list[int], list[str]] | None:
    """Return the indices of the columns that are named after languages, in the order of the file, and no notes.

    The result is None unless all wanted columns may be named after a language and there are as many such columns as wanted.

    Args:
        keys: normalized names of all columns of the file.
        free: indices of the columns of the file that are not chosen yet.
        unknown: the wanted columns.
    """
    languages = [i for i in free if keys[i] in LANGUAGES]
    return (languages, []) if len(languages) == len(unknown) and unknown and all(column.is_language for column in unknown) else None


def _by_elimination(
    names: Sequence[str], free: Sequence[int], unknown: Sequence[Column], rows: Sequence[Sequence[str]]
) -> tuple[list[int], list[str]] | None:
    """Choose columns by elimination, and return their indices and notes, or None.

    A single wanted column is the only free column. Of two free columns, the one whose values repeat contains the classes.

    Args:
        names: names of all columns of the file.
        free: indices of the columns of the file that are not chosen yet.
        unknown: the wanted columns.
        rows: cells of the samples.
    """
    if len(unknown) == len(free) == 1:
        only = "the {column} is taken from {field}, the only column left"
        return [free[0]], [phrase("notes.only_column", only, column=unknown[0].name, field=repr(names[free[0]]))]
    if len(unknown) == len(free) == 2 and unknown[1].is_class:
        cells = [[row[i] for row in rows if len(row) > max(free)] for i in free]
        for texts, classes in ((0, 1), (1, 0)):
            if _are_classes(cells[classes]) and _are_distinct(cells[texts]):
                field = repr(names[free[classes]])
                note = phrase("notes.repeating_column", "the classes are taken from {field}, whose values repeat", field=field)
                return [free[texts], free[classes]], [note]
    return None


def _advice(names: Sequence[str], columns: Sequence[Column], chosen: Sequence[int | None]) -> str:
    """Return advice with options that select the columns.

    The options name the recognized columns. For each other column, they name the next column of the file that is not chosen yet.
    """
    left = (names[i] for i in range(len(names)) if i not in chosen)
    required = [(column, index) for column, index in zip(columns, chosen, strict=True) if not column.is_optional]
    selected = [(column.flag, next(left, None) if index is None else names[index]) for column, index in required]
    options = [f"{flag} {'NAME' if name is None else repr(name) if ' ' in name else name}" for flag, name in selected]
    return f"use {' '.join(options)} ({' and '.join(f'{column.name}_field' for column, _ in required)} in a recipe)"


def _is_header(first: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[Column], fields: Sequence[Field | None]) -> bool:
    """Return whether the first line is certainly a header.

    It is one if it contains a usual name of each column, or the names of languages as the names of sentence pairs' columns. A usual name
    of one column is enough if the first line's class occurs in no other line.
    """
    if not all(map(_NAME.fullmatch, map(str.strip, first))):
        return False
    keys = list(map(_key, first))
    known = [
        any(alias in (keys if field is None else keys[int(field) : int(field) + 1]) for alias in column.aliases)
        for column, field in zip(columns, fields[: len(columns)], strict=True)
    ]
    if all(known) and len(keys) >= len(columns) and len(set(keys)) == len(keys):
        return True
    if all(column.is_language for column in columns):
        return sum(key in LANGUAGES for key in keys) == len(columns)
    last = len(columns) - 1
    return any(known) and columns[last].is_class and len(first) == len(columns) and _class_counts(rows, last)[first[last].strip()] == 1


def _reject_suspicious(path: str, rows: Sequence[Sequence[str]], columns: Sequence[Column], fields: Sequence[Field | None]) -> None:
    """Raise AmbiguousHeaderError if the first line differs from the other lines in the way in which a header would."""
    indices = [place if field is None else int(field) for place, field in enumerate(fields[: len(columns)])]
    if len(rows) < MIN_LINES or len(rows[0]) <= max(indices):
        return
    cells = [rows[0][index] for index in indices]
    if columns[-1].is_class:
        counts = _class_counts(rows, indices[-1])
        most_repeat = sum(count == 1 for count in counts.values()) <= counts.total() / 10
        reason = f"no other line has the class {cells[-1]!r}" if counts[cells[-1].strip()] == 1 and most_repeat else ""
    else:
        others = [[row[index] for index in indices] for row in rows[1:] if len(row) > max(indices)]
        looks_so = sum(all(map(_looks_like_a_name, row)) for row in others)
        reason = "it looks like names, unlike other lines" if all(map(_looks_like_a_name, cells)) and looks_so <= len(others) / 100 else ""
    if reason:
        shown = ", ".join(repr(cell[:60]) for cell in rows[0])
        raise AmbiguousHeaderError(
            f"{path}:1: expected a header or a sample, found {shown}, which may be either: {reason}; use --header or --no-header",
            f"{path} begins with {shown}: {reason}. Is this line a header?",
        )


def _key(name: str) -> str:
    """Normalize a column name to lower case with underscores between words, for comparison with the usual names."""
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())


def _looks_like_a_name(cell: str) -> bool:
    return len(cell.split()) == 1 and _NAME.fullmatch(cell.strip()) is not None


def _class_counts(rows: Sequence[Sequence[str]], index: int) -> Counter[str]:
    return Counter(row[index].strip() for row in rows if len(row) > index)


def _classes_come_first(rows: Sequence[Sequence[str]]) -> bool:
    cells = [[row[i] for row in rows if len(row) > 1] for i in (0, 1)]
    return _are_classes(cells[0]) and _are_distinct(cells[1])


def _are_classes(cells: Sequence[str]) -> bool:
    return len(cells) >= MIN_LINES and len(set(cells)) <= len(cells) / 5


def _are_distinct(cells: Sequence[str]) -> bool:
    return len(set(cells)) > len(cells) / 2


def _position(path: str, field: Field | None, place: int, column: Column) -> int | None:
    """Return the index of a column in a file without a header, or None for an optional column without a field."""
    if isinstance(field, str):
        raise DataError(f"{path}: expected a header with the column {field!r}, found --no-header; leave it out, or give an index from 0")
    if field is None:
        return None if column.is_optional else place
    return _check_index(path, field, column)


def _named_index(where: str, names: Sequence[str], field: Field, columns: Sequence[Column]) -> int:
    if isinstance(field, int):
        return _check_index(where, field, columns[0])
    if field not in names:
        found = ", ".join(names) or "(none)"
        same = [name for name in names if name.lower() == field.lower()] or get_close_matches(field, names, n=1)
        if same:
            raise DataError(f"{where}: expected the column {field!r}, found the columns {found}; did you mean {same[0]!r}?")
        raise DataError(
            f"{where}: expected the column {field!r}, found the columns {found}; {_advice(names, columns, [None] * len(columns))}"
        )
    return names.index(field)


def _check_index(where: str, field: int, column: Column) -> int:
    if field < 0:
        raise ConfigError(f"{where}: expected a column index of at least 0, found {field}; correct {column.flag} ({column.name}_field)")
    return field
