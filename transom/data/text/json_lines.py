"""JSON lines: one object a line, of which some fields are text."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transom.data.text.text import check_text
from transom.errors import DataError
from transom.files.regular import parse_json


def json_rows(
    path: Path, lines: Iterable[str], fields: Sequence[str | int], advice: str, numbers: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Read fields of a file's records; an empty line is a record of empty texts.

    Args:
        path: the file, for messages.
        lines: its lines.
        fields: keys of an object or places in a list.
        advice: what to do where a field is missing, for people.
        numbers: take a whole number or a truth value as its text too, as classes often are.

    Yields:
        Each record's line number, from 1, and its fields.

    Raises:
        DataError: a line is no JSON object or list, or a field is missing or no text.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            yield number, [""] * len(fields)
            continue
        where = f"{path}:{number}"
        record = _parse(line, where)
        yield number, [_field(record, field, where, advice, numbers) for field in fields]


def _parse(line: str, where: str) -> Any:
    try:
        return parse_json(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}:{error.colno}: expected one JSON object a line: {error.msg}") from error
    except ValueError as error:
        raise DataError(f"{where}: expected one plain JSON object a line, found {error}; correct or remove the line") from error


def _field(record: Any, field: str | int, where: str, advice: str, numbers: bool) -> str:
    places = range(len(record)) if isinstance(record, list) else record if isinstance(record, dict) else ()
    if field not in places:
        found = f"fields {', '.join(map(repr, record)) or '(none)'}" if isinstance(record, dict) else f"a {type(record).__name__}"
        raise DataError(f"{where}: expected JSON with the field {field!r}, found {found:.100}; {advice}")
    value = record[field]
    if numbers and isinstance(value, int):
        return json.dumps(value)
    if not isinstance(value, str):
        raise DataError(f"{where}: expected text in the field {field!r}, found {json.dumps(value)[:100]}")
    return check_text(value, f"{where}: field {field!r}")
