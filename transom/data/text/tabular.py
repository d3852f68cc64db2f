"""Reading of tabular files of texts in the formats TSV, CSV, JSON and Parquet."""

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transom.data.text.json_lines import read_json_array, read_json_lines, short_json
from transom.data.text.table_columns import Column, Field, choose_columns, describe_columns, find_layout
from transom.data.text.text_io import check_text, read_lines
from transom.errors import ConfigError, DataError
from transom.files.message import phrase

Rows = list[tuple[int, list[str]]]
Record = dict[str, Any] | list[Any]

SUFFIXES = (".tsv", ".csv", ".jsonl", ".json", ".parquet")
"""Suffixes of the supported formats, each of which except ``.parquet`` may be followed by ``.gz``."""


class Table(NamedTuple):
    """Columns read from a tabular file.

    Attributes:
        lines: line number of each sample, from 1; in JSON arrays and Parquet files its position.
        columns: the texts of each column.
        notes: what was recognized or guessed in the file, one sentence each.
        n_arrays: number of classes that are arrays; see ``read_table``.
    """

    lines: list[int]
    columns: tuple[list[str], ...]
    notes: tuple[str, ...]
    n_arrays: int = 0


def read_table(
    path: Path,
    columns: Sequence[Column],
    fields: Sequence[Field | None],
    header: bool | None = None,
    numbers_as_text: bool = False,
    joined_by: str | None = None,
) -> Table:
    """Read columns of a tabular file.

    Args:
        path: a .tsv, .csv, .jsonl, .json or .parquet file; all but the last may be gzipped.
        columns: the columns to read.
        fields: name, or index from 0, of each column; None finds the column by its usual names, or by its position in a file without names.
        header: whether the first line of a .tsv or .csv file is a header; None decides by its names.
        numbers_as_text: convert integers and booleans to text, because class labels are often numbers.
        joined_by: separator by which the elements of an array in a column of classes are joined; None refuses arrays.

    Raises:
        DataError: the file cannot be read, a sample is malformed, a column cannot be found, or the file has no sample.
        AmbiguousHeaderError: the first line may be a header, and ``header`` is None.
        ConfigError: the file's format is unknown, or a field does not fit the format.
    """
    suffix, n_arrays = table_suffix(path), 0
    if suffix in _DELIMITED:
        lines, texts, notes = _read_delimited(path, _DELIMITED[suffix](path), columns, fields, header)
    else:
        lines, texts, notes, n_arrays = _read_records(path, read_records(path), columns, fields, numbers_as_text, joined_by)
    if not lines:
        raise DataError(f"{path}: expected at least one sample, found {'only a header' if suffix in _DELIMITED else 'none'}; add samples")
    return Table(lines, tuple([row[place] for row in texts] for place in range(len(columns))), tuple(notes), n_arrays)


def is_table(path: Path) -> bool:
    """Return whether the suffix of a file is one of ``SUFFIXES``, ignoring ``.gz``."""
    return _suffix(path) in SUFFIXES


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def table_suffix(path: Path) -> str:
    """Return the suffix of a tabular file in lower case, ignoring ``.gz``.

    Raises:
        ConfigError: the suffix is none of ``SUFFIXES``, or it is that of no file.
    """
    suffix = _suffix(path)
    if suffix not in SUFFIXES:
        if not path.exists():
            raise ConfigError(f"{path}: no such file or folder; check the path")
        raise ConfigError(
            f"{path}: expected a .tsv, .csv, .jsonl, .json or .parquet file (.gz too), found {suffix or 'no suffix'!r}; give another file"
        )
    return suffix


def read_records(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield the number, starting at 1, and the fields of each record of a JSON or Parquet file.

    The number is the line number in JSON Lines files, whose blank lines are skipped, and the position of the record in other files.

    Raises:
        DataError: the file cannot be read, or a record is malformed.
        ConfigError: the suffix is unknown, or the file is a Parquet file and pyarrow is not installed.
    """
    suffix = table_suffix(path)
    if suffix == ".parquet":
        return _parquet_records(path)
    return read_json_lines(path) if suffix == ".jsonl" else read_json_array(path)


def record_text(record: Record, field: Field, where: str, numbers_as_text: bool = False) -> str:
    """Return a field of a record as text.

    Args:
        record: a JSON object or list, or a row of a Parquet file.
        field: name of the field in an object, or index in a list.
        where: position of the record, for messages.
        numbers_as_text: convert integers and booleans to text.

    Raises:
        DataError: the record has no such field, or the field's value is not text.
    """
    places = record if isinstance(record, dict) else range(len(record))
    if field not in places:
        found = f"fields {', '.join(map(repr, record)) or '(none)'}" if isinstance(record, dict) else f"a list of {len(record)}"
        raise DataError(f"{where}: expected the field {field!r}, found {found:.100}; correct or remove the record")
    value = record[field]  # type: ignore[index]  # a name of an object, or an index of a list
    if numbers_as_text and isinstance(value, int):
        return json.dumps(value)
    if not isinstance(value, str):
        raise DataError(f"{where}: expected text in the field {field!r}, found {short_json(value)}; correct or remove the record")
    return check_text(value, f"{where}: field {field!r}")


def _read_delimited(
    path: Path, rows: Rows, columns: Sequence[Column], fields: Sequence[Field | None], header: bool | None
) -> tuple[list[int], list[list[str]], list[str]]:
    layout = find_layout(str(path), [row for _, row in rows], columns, fields, header)
    needed = max(index for index in layout.indices if index is not None) + 1
    lines, texts = list[int](), list[list[str]]()
    for line, row in rows[layout.has_header :]:
        if row and len(row) < needed:
            separator = "tabs" if table_suffix(path) == ".tsv" else "commas"
            raise DataError(
                f"{path}:{line}: expected at least {needed} columns separated by {separator}, found {len(row)}; correct the line"
            )
        if row:
            lines.append(line)
            texts.append(["" if index is None else row[index] for index in layout.indices])
    if (n_blank := len(rows) - layout.has_header - len(lines)) > 0:
        layout.notes.append(phrase("notes.blank_lines", "blank lines skipped: {number}", number=n_blank))
    return lines, texts, layout.notes


def _read_records(
    path: Path,
    records: Iterator[tuple[int, Record]],
    columns: Sequence[Column],
    fields: Sequence[Field | None],
    numbers_as_text: bool,
    joined_by: str | None,
) -> tuple[list[int], list[list[str]], list[str], int]:
    """Read fields of records. The first record decides which fields hold the columns, optional ones excepted.

    Returns:
        Number and cells of each record, notes, and the number of cells that are arrays.
    """
    required = [column for column in columns if not column.is_optional]
    optional = columns[len(required) :]
    lines, texts, notes, chosen = list[int](), list[list[str]](), list[str](), list[Field]()
    n_arrays = 0
    for number, record in records:
        where = f"{path}:{number}"
        if not chosen:
            chosen, notes = _choose_fields(where, record, required, fields[: len(required)])
        lines.append(number)
        joints = [joined_by if column.is_class else None for column in required]
        arrays = [joint is not None and _is_array(record, field) for field, joint in zip(chosen, joints, strict=True)]
        n_arrays += sum(arrays)
        cells = [
            _array_text(record, field, where, joint) if joint and is_array else record_text(record, field, where, numbers_as_text)
            for field, joint, is_array in zip(chosen, joints, arrays, strict=True)
        ]
        texts.append([*cells, *(_optional_text(record, column, chosen, where) for column in optional)])
    return lines, texts, notes, n_arrays


def _is_array(record: Record, field: Field) -> bool:
    if isinstance(record, dict):
        return isinstance(field, str) and isinstance(record.get(field), list)
    return isinstance(field, int) and field < len(record) and isinstance(record[field], list)


def _array_text(record: Record, field: Field, where: str, joint: str) -> str:
    """Return the elements of an array of labels, joined by ``joint``, which must not occur in them."""
    values: list[Any] = record[field]  # type: ignore[index]  # a name of an object, or an index of a list
    texts = [record_text(values, place, f"{where}: field {field!r}", numbers_as_text=True).strip() for place in range(len(values))]
    if unfit := next((text for text in texts if joint in text), None):
        raise DataError(f"{where}: expected labels without {joint} in the field {field!r}, found {unfit[:50]!r}; rename the label")
    if "" in texts:
        raise DataError(f"{where}: expected labels in the field {field!r}, found an empty text; remove it")
    return joint.join(texts)


def _optional_text(record: Record, column: Column, chosen: Sequence[Field], where: str) -> str:
    """Return the text of an optional column, or an empty string if the record lacks the column."""
    if isinstance(record, list):
        return ""
    return next((record_text(record, name, where) for name in column.aliases if name not in chosen and record.get(name) is not None), "")


def _choose_fields(where: str, record: Record, columns: Sequence[Column], fields: Sequence[Field | None]) -> tuple[list[Field], list[str]]:
    """Return the field of a record that contains each column, and notes on fields whose name differs from the column's."""
    if isinstance(record, list):
        return [place if field is None else field for place, field in enumerate(fields)], []
    usual = {alias for column in columns for alias in column.aliases}.union(field for field in fields if isinstance(field, str))
    names = [name for name, value in record.items() if isinstance(value, str | int) or name in usual]
    indices, notes = choose_columns(where, names, columns, fields)
    for column, index in zip(columns, indices, strict=True):
        if index is not None and index >= len(names):
            raise DataError(
                f"{where}: expected a field of index {index} for the {column.name}, found {len(names)} fields; correct {column.flag}"
            )
    chosen: list[Field] = [names[index] for index in indices if index is not None]
    if chosen != [column.name for column in columns] and not notes:
        notes = [describe_columns(names, columns, indices)]
    return chosen, notes


def _tsv_rows(path: Path) -> Rows:
    return [(number, line.split("\t") if line else []) for number, line in enumerate(read_lines(path), 1)]


def _csv_rows(path: Path) -> Rows:
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    start, rows = 1, Rows()
    try:
        for row in reader:
            rows.append((start, row))
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}:{start}: expected a CSV record, found an error at line {reader.line_num}: {error}; correct the record"
        ) from error
    return rows


_DELIMITED: dict[str, Callable[[Path], Rows]] = {".tsv": _tsv_rows, ".csv": _csv_rows}


def _parquet_records(path: Path) -> Iterator[tuple[int, Record]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError(
            f"{path}: reading Parquet requires pyarrow: pip install 'transom[parquet]', or export the file as .jsonl"
        ) from None
    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path") from error
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{path}: expected a Parquet file, found an error after record {number}: {reason}; write the file again") from error
