"""Read and write files of edits: JSON, such as {"version": 1, "edits": [{"kind": "ablate-heads", "blocks": [0], "heads": [2]}]}."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from transom.config.error_messages import validate
from transom.config.schema import kinds, list_item_schemas
from transom.errors import ConfigError, TransomError
from transom.files.atomic_io import json_bytes, write_file
from transom.files.limits import MAX_JSON_BYTES
from transom.files.regular_files import parse_json, read_regular_file
from transom.inspection.edits.schemas import VERSION, EditConfig, EditFile

KINDS = [kind for option in list_item_schemas(EditFile.model_fields["edits"]) for kind in kinds(option)]
"""All kinds of edits."""


class EditFileError(TransomError):
    """A file of edits that cannot be read or does not match the schema."""


def load_edits(path: str | Path) -> tuple[EditConfig, ...]:
    """Read a file of edits.

    Raises:
        EditFileError: the file cannot be read, is no JSON, or does not match the schema.
    """
    path = Path(path)
    try:
        data = read_regular_file(path, MAX_JSON_BYTES, "a file of edits", EditFileError)
        raw = parse_json(data)
    except OSError as error:
        raise EditFileError(f"{path}: expected a file of edits, found none that can be read ({error.strerror})") from None
    except ValueError as error:
        if isinstance(error, EditFileError):
            raise
        raise EditFileError(f"{path}: expected JSON, found {_json_problem(error)}; transom trace --help shows an example") from None
    if not isinstance(raw, Mapping):
        example = '{"version": 1, "edits": [{"kind": "ablate-heads", "blocks": [0], "heads": [2]}]}'
        raise EditFileError(f"{path}: expected an object such as {example}, found {'a list' if isinstance(raw, list) else raw!r:.40}")
    return parse_edits(raw, str(path))


def _json_problem(error: ValueError) -> str:
    """Return a noun phrase for what is wrong with the text of a file."""
    match error:
        case UnicodeDecodeError():
            return f"a byte that is not UTF-8 at position {error.start:,}"
        case JSONDecodeError(doc=doc) if not doc.strip():
            return "an empty file"
        case JSONDecodeError(doc=doc) if doc.startswith("\ufeff"):
            return "a byte-order mark before it"
        case JSONDecodeError():
            return f"a mistake at line {error.lineno}, column {error.colno}"
    return str(error)


def parse_edits(raw: Mapping[str, Any], origin: str = "edits") -> tuple[EditConfig, ...]:
    """Validate the content of a file of edits.

    Args:
        raw: the content.
        origin: name of the file, for messages.

    Raises:
        EditFileError: the content does not match the schema.
    """
    edits = raw.get("edits")
    for number, edit in enumerate(edits if isinstance(edits, Sequence) and not isinstance(edits, str) else ()):
        kind = edit.get("kind") if isinstance(edit, Mapping) else edit
        if kind not in KINDS:
            near = difflib.get_close_matches(str(kind), KINDS, n=3, cutoff=0.4) or KINDS
            raise EditFileError(
                f"{origin}: edits.{number}.kind: expected a kind of edit, found {kind!r}; the nearest are {', '.join(near)}"
            )
    try:
        return validate(EditFile, raw, lambda path: origin).edits
    except ConfigError as error:
        raise EditFileError(str(error)) from None


def dump_edits(edits: Iterable[EditConfig]) -> dict[str, Any]:
    """Return edits as the content of a file, without fields that have their default; ``parse_edits`` returns the same edits."""
    return {"version": VERSION, "edits": [{"kind": each.kind, **each.model_dump(mode="json", exclude_defaults=True)} for each in edits]}


def save_edits(path: str | Path, edits: Iterable[EditConfig]) -> None:
    """Write a file of edits."""
    write_file(Path(path), json_bytes(dump_edits(edits)))
