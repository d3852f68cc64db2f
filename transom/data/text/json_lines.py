"""Reading of JSON records, either one record per line or one array of records per file."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transom.data.text.text_io import read_lines
from transom.errors import DataError
from transom.files.limits import MAX_DOCUMENT_LINE_BYTES
from transom.files.regular_files import parse_json


def read_json_lines(path: Path, allow_empty: bool = False) -> Iterator[tuple[int, Any]]:
    """Yield the line number, starting at 1, and the JSON object or list of each line, and skip blank lines.

    Args:
        path: the file to read.
        allow_empty: accept an empty file.

    Raises:
        DataError: the file cannot be read, is empty and must not be, or has a line that is not a non-empty JSON object or list.
    """
    for number, line in enumerate(read_lines(path, allow_empty), 1):
        if line.strip():
            where = f"{path}:{number}"
            yield number, _require_record(_parse(line, where, "one JSON object per line"), where)


def read_json_array(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the position, starting at 1, and the value of each element of a JSON array.

    Raises:
        DataError: the file cannot be read, or is not a JSON array of non-empty objects or lists.
    """
    text = "\n".join(read_lines(path, max_line_bytes=MAX_DOCUMENT_LINE_BYTES))
    value = _parse(text, str(path), "a JSON array of objects")
    if not isinstance(value, list):
        raise DataError(
            f"{path}: expected a JSON array of objects, found {short_json(value)}; write one object per line and name it .jsonl"
        )
    for number, record in enumerate(value, 1):
        yield number, _require_record(record, f"{path}:{number}")


def _require_record(value: Any, where: str) -> Any:
    if not isinstance(value, dict | list) or not value:
        raise DataError(f"{where}: expected a JSON object with fields, found {short_json(value)}; correct or remove it")
    return value


def _parse(text: str, where: str, expected: str) -> Any:
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        at = error.colno if error.lineno == 1 else f"{error.lineno}:{error.colno}"
        raise DataError(f"{where}:{at}: expected {expected}, found an error: {error.msg}; correct or remove it") from error
    except ValueError as error:
        raise DataError(f"{where}: expected {expected}, found {error}; correct or remove it") from error


def short_json(value: Any) -> str:
    """Return the first 100 characters of a value's JSON, for messages."""
    return json.dumps(value, default=repr)[:100]
