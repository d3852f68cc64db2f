"""Read files that may be damaged or hostile: regular files of bounded size, inside their folder, with the expected hash."""

import hashlib
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from transom.errors import CheckpointError
from transom.files.atomic_io import FORMAT_VERSION, MANIFEST, SHARDED_FORMAT_VERSION, Entries
from transom.files.limits import MAX_JSON_BYTES
from transom.files.regular_files import open_regular_file, parse_json, read_regular_file


def require_regular_file(path: Path) -> Path:
    """Return ``path`` if it is a regular file that is inside its folder after symbolic links are resolved.

    Raises:
        CheckpointError: the path is missing, a folder, a device, or a symbolic link to a file outside its folder.
    """
    try:
        mode = path.stat().st_mode
        inside = path.resolve().is_relative_to(path.parent.resolve())
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: expected a file, found none ({_reason(error)})") from error
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path}: expected a file, found {'a folder' if stat.S_ISDIR(mode) else 'a device or a pipe'}")
    if not inside:
        raise CheckpointError(
            f"{path}: expected a file inside its folder, found a symbolic link to a file outside it; replace the link by a copy"
        )
    return path


def read_bytes(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Read a regular file of at most ``max_bytes`` bytes.

    Raises:
        CheckpointError: the file is missing, not a regular file inside its folder, too large, or cannot be read.
    """
    require_regular_file(path)
    try:
        return read_regular_file(path, max_bytes, "one of transom's files", CheckpointError)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({_reason(error)})") from error


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES, newest: int = FORMAT_VERSION) -> dict[str, Any]:
    """Read a JSON file that contains an object with a supported ``format_version``.

    NaN is accepted, because validation metrics in a checkpoint can be NaN.

    Args:
        path: the file.
        max_bytes: largest size of the file.
        newest: newest supported ``format_version``.

    Raises:
        CheckpointError: the file cannot be read, is damaged or too large, or was written by a newer version of transom.
    """
    data = read_bytes(path, max_bytes)
    try:
        document = parse_json(data, finite=False)
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged, expected JSON ({error})") from error
    if not isinstance(document, dict) or not isinstance(version := document.get("format_version"), int):
        raise CheckpointError(f"{path}: expected a JSON object with a format_version, found none; this file was not written by transom")
    if not 1 <= version <= newest or isinstance(version, bool):
        raise CheckpointError(
            f"{path}: expected format_version 1 to {newest}, found {version}; use the transom version that wrote this file"
        )
    return document


def describe_validation_error(error: ValidationError) -> str:
    """Return a line that names the first invalid field of a JSON document that transom wrote, its value and the reason."""
    first = error.errors()[0]
    field = ".".join(ascii(str(part))[1:-1] for part in first["loc"]) or "the whole document"
    return f"{field[:200]}: expected a value that transom writes, found {first['input']!r:.80} ({first['msg'][:200]})"


def read_manifest(folder: Path, names: re.Pattern[str]) -> Entries:
    """Read the manifest of a folder.

    Args:
        folder: a folder written by ``atomic_io.write_folder``.
        names: pattern that must match each file name as a whole.

    Returns:
        Size (``bytes``) and hash (``sha256``) of each file, by file name.

    Raises:
        CheckpointError: the manifest cannot be read or is damaged, or a file name does not match ``names``.
    """
    path = folder / MANIFEST
    files = read_json(path, newest=SHARDED_FORMAT_VERSION).get("files")
    if not isinstance(files, dict):
        raise CheckpointError(f"{path}: damaged, expected the field 'files' with one entry per file")
    for name, entry in files.items():
        if not names.fullmatch(name):
            raise CheckpointError(f"{path}: expected names of checkpoint files, found {name[:80]!r}; no file was read")
        if not isinstance(entry, dict) or type(entry.get("bytes")) is not int or not isinstance(entry.get("sha256"), str):
            raise CheckpointError(f"{path}: damaged, expected a size and a hash for {name}")
    return files


def verify_files(folder: Path, files: Entries, names: Iterable[str]) -> None:
    """Compare size and SHA-256 of some files of a folder with its manifest.

    Args:
        folder: a folder with a manifest.
        files: the entries of the manifest, by file name.
        names: names of the files to verify.

    Raises:
        CheckpointError: a file is missing, truncated or altered; the message names the first such file.
    """
    for name in names:
        path, entry = require_regular_file(folder / name), files[name]
        if (size := path.stat().st_size) != entry["bytes"]:
            raise CheckpointError(f"{path}: damaged, expected {entry['bytes']:,} bytes, found {size:,}")
        if file_sha256(path) != entry["sha256"]:
            raise CheckpointError(f"{path}: damaged, its SHA-256 differs from the one in {MANIFEST}")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file as hexadecimal digits.

    Raises:
        CheckpointError: the file cannot be read.
    """
    try:
        with open_regular_file(path, CheckpointError) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
