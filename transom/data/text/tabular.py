"""Tabular files of texts: tab-separated, comma-separated and JSON lines."""

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from transom.data.text.json_lines import read_json_records
from transom.data.text.text_io import read_lines
from transom.errors import ConfigError, DataError

Field = str | int
Rows = Iterator[tuple[int, list[str]]]


def read_columns(
    path: Path, fields: Sequence[Field | None], names: Sequence[str], numbers_as_text: bool = False
) -> tuple[list[int], tuple[list[str], ...]]:
    """Read columns of a tabular file.

    Args:
        path: a .tsv, .csv or .jsonl file, optionally gzipped.
        fields: name or index, from 0, of each column to read; None selects the default column, which is the position among ``names`` in a
            .tsv and the name elsewhere.
        names: default names of the columns, such as "source"; with the suffix ``_field`` they are the recipe's fields.
        numbers_as_text: convert JSON integers and booleans to text, because class labels are often numbers.

    Returns:
        The line number of each record, and one list of texts per column.

    Raises:
        DataError: the file cannot be read, a record is malformed, or the file has no record.
        ConfigError: the file's format is unknown, or a field does not fit the format.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix not in (".jsonl", *_READERS):
        raise ConfigError(
            f"{path}: expected a .tsv, .csv or .jsonl file (or one of them with .gz), found {suffix or 'no suffix'!r}; name another file"
        )
    usual: Sequence[Field] = range(len(names)) if suffix == ".tsv" else names
    chosen = [default if field is None else field for field, default in zip(fields, usual, strict=True)]
    hint = f"set {' and '.join(f'{name}_field' for name in names)}"
    lines, columns = [], tuple(list[str]() for _ in names)
    records = (
        read_json_records(path, read_lines(path), chosen, hint, numbers_as_text)
        if suffix == ".jsonl"
        else _READERS[suffix](path, chosen, hint)
    )
    for line, texts in records:
        lines.append(line)
        for column, text in zip(columns, texts, strict=True):
            column.append(text)
    if not lines:
        raise DataError(f"{path}: expected at least one record, found only a header; add records")
    return lines, columns


def _tsv_rows(path: Path, fields: Sequence[Field], hint: str) -> Rows:
    records = ((number, line.split("\t") if line else []) for number, line in enumerate(read_lines(path), 1))
    return _select_columns(path, fields, records, "tabs", hint)


def _csv_rows(path: Path, fields: Sequence[Field], hint: str) -> Rows:
    return _select_columns(path, fields, _csv_records(path), "commas", hint)


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    start = 1
    try:
        for row in reader:
            yield start, row
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}:{start}: expected a CSV record, found an error at line {reader.line_num}: {error}; correct the record"
        ) from error


def _select_columns(path: Path, fields: Sequence[Field], records: Iterator[tuple[int, list[str]]], separator: str, hint: str) -> Rows:
    named = any(isinstance(field, str) for field in fields)
    columns = _column_indices(path, fields, next(records)[1] if named else [], hint)
    for start, row in records:
        if row and len(row) <= max(columns):
            raise DataError(
                f"{path}:{start}: expected at least {max(columns) + 1} columns separated by {separator}, found {len(row)}; correct the line"
            )
        yield start, [row[column] for column in columns] if row else [""] * len(columns)


def _column_indices(path: Path, fields: Sequence[Field], header: list[str], hint: str) -> list[int]:
    for field in fields:
        if isinstance(field, str) and field not in header:
            found = ", ".join(map(repr, header)) or "an empty line"
            raise DataError(f"{path}:1: expected a header with the column {field!r}, found {found}; {hint}")
        if isinstance(field, int) and field < 0:
            raise ConfigError(f"{path}: expected a column index of at least 0, found {field}; {hint}")
    return [header.index(field) if isinstance(field, str) else field for field in fields]


_READERS: dict[str, Callable[[Path, Sequence[Field], str], Rows]] = {".tsv": _tsv_rows, ".csv": _csv_rows}
