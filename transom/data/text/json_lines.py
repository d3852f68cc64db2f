"""JSON lines: one JSON object per line, with text fields."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transom.data.text.text_io import check_text
from transom.errors import DataError
from transom.files.regular_files import parse_json


def read_json_records(
    path: Path, lines: Iterable[str], fields: Sequence[str | int], hint: str, numbers_as_text: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Read fields of JSON lines; an empty line is a record of empty texts.

    Args:
        path: the file, for messages.
        lines: the file's lines.
        fields: keys of an object or indices of a list.
        hint: what to do if a field is missing; the end of the error message.
        numbers_as_text: convert integers and booleans to text, because class labels are often numbers.

    Yields:
        The line number, from 1, and the fields of each record.

    Raises:
        DataError: a line is not a JSON object or list, or a field is missing or not text.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            yield number, [""] * len(fields)
            continue
        where = f"{path}:{number}"
        record = _parse(line, where)
        yield number, [_field(record, field, where, hint, numbers_as_text) for field in fields]


def _parse(line: str, where: str) -> Any:
    try:
        return parse_json(line)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}:{error.colno}: expected one JSON object per line, found an error: {error.msg}; correct or remove the line"
        ) from error
    except ValueError as error:
        raise DataError(f"{where}: expected one plain JSON object per line, found {error}; correct or remove the line") from error


def _field(record: Any, field: str | int, where: str, hint: str, numbers_as_text: bool) -> str:
    places = range(len(record)) if isinstance(record, list) else record if isinstance(record, dict) else ()
    if field not in places:
        found = f"fields {', '.join(map(repr, record)) or '(none)'}" if isinstance(record, dict) else f"a {type(record).__name__}"
        raise DataError(f"{where}: expected JSON with the field {field!r}, found {found:.100}; {hint}")
    value = record[field]
    if numbers_as_text and isinstance(value, int):
        return json.dumps(value)
    if not isinstance(value, str):
        raise DataError(f"{where}: expected text in the field {field!r}, found {json.dumps(value)[:100]}; correct or remove the line")
    return check_text(value, f"{where}: field {field!r}")
