"""Read files that may be damaged or hostile: plain files only, of a bounded size, inside their folder, with the hash they should have."""

import hashlib
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from transom.errors import CheckpointError
from transom.files.durable import FORMAT_VERSION, MANIFEST
from transom.files.limits import MAX_JSON_BYTES
from transom.files.regular import open_regular, parse_json, read_regular


def plain_file(path: Path) -> Path:
    """Return ``path`` if it is a plain file that lies in its folder, also when symbolic links are followed.

    Raises:
        CheckpointError: it is missing, a folder, a device, or a link to somewhere else.
    """
    try:
        mode = path.stat().st_mode
        inside = path.resolve().is_relative_to(path.parent.resolve())
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: expected a file, found none ({_reason(error)})") from error
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path}: expected a file, found {'a folder' if stat.S_ISDIR(mode) else 'a device or a pipe'}")
    if not inside:
        raise CheckpointError(f"{path}: a symbolic link that leads out of its folder is not followed; copy the file in its place")
    return path


def read_bytes(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Read a plain file of at most ``max_bytes``."""
    plain_file(path)
    try:
        return read_regular(path, max_bytes, "one of transom's files", CheckpointError)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({_reason(error)})") from error


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object whose ``format_version`` this transom reads; numbers may be NaN, as a checkpoint's validation figures can be.

    Raises:
        CheckpointError: it is damaged, too large, or written by a newer transom.
    """
    data = read_bytes(path, max_bytes)
    try:
        document = parse_json(data, finite=False)
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged, expected JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(version := document.get("format_version"), int):
        raise CheckpointError(f"{path}: expected a JSON object with a format_version, found none; this is no file of transom's")
    if not 1 <= version <= FORMAT_VERSION or isinstance(version, bool):
        raise CheckpointError(f"{path}: format_version {version}, this transom reads 1 to {FORMAT_VERSION}; use the transom that wrote it")
    return document


def explain(error: ValidationError) -> str:
    """Describe the first thing that is wrong with a document that transom wrote: the field, what was expected and found."""
    first = error.errors()[0]
    field = ".".join(ascii(str(part))[1:-1] for part in first["loc"]) or "the whole"
    return f"{field[:200]}: expected what transom writes, found {first['input']!r:.80} ({first['msg'][:200]})"


def read_manifest(folder: Path, names: re.Pattern[str]) -> dict[str, dict[str, Any]]:
    """Read which files belong to a folder.

    Args:
        folder: what ``durable.write_folder`` wrote.
        names: what a file's whole name may look like.
    """
    path = folder / MANIFEST
    files = read_json(path).get("files")
    if not isinstance(files, dict):
        raise CheckpointError(f"{path}: damaged, expected a table of files")
    for name, entry in files.items():
        if not names.fullmatch(name):
            raise CheckpointError(f"{path}: the file name {name[:80]!r} is not one of a checkpoint's; nothing was read")
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or not isinstance(entry.get("sha256"), str):
            raise CheckpointError(f"{path}: damaged, expected a size and a hash for {name}")
    return files


def verify(folder: Path, files: dict[str, dict[str, Any]], names: Iterable[str]) -> None:
    """Compare the size and the hash of ``names`` in ``folder`` with its manifest's entries ``files``.

    Raises:
        CheckpointError: naming the first file that is missing, cut or altered.
    """
    for name in names:
        path, entry = plain_file(folder / name), files[name]
        if (size := path.stat().st_size) != entry["bytes"]:
            raise CheckpointError(f"{path}: damaged, expected {entry['bytes']:,} bytes, found {size:,}")
        if sha256(path) != entry["sha256"]:
            raise CheckpointError(f"{path}: damaged, its SHA-256 is not the one in {MANIFEST}")


def sha256(path: Path) -> str:
    """Hash a regular file's content.

    Raises:
        CheckpointError: it cannot be read.
    """
    try:
        with open_regular(path, CheckpointError) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
