"""Write files and folders atomically: a path has either its old or its new content, even after ``kill -9``.

Content is written to ``NAME.partial-XXXXXXXX``, synced with fsync and renamed; then the parent folder is synced. A killed process can only
leave such partial files and folders, which ``remove_partial_files`` removes.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from transom.errors import DiskError
from transom.files.file_lock import lock_file, require_file_locks

FORMAT_VERSION = 3
"""Format version that is written to the JSON files of a run folder: ``config.json``, ``state.json`` and manifests.

Since version 2, the metadata of tensor files contains the run id and the step.
"""

SHARDED_FORMAT_VERSION = 4
"""Format version of checkpoints with pieces of tensors in a file per rank; all other files keep ``FORMAT_VERSION``."""

MANIFEST = "manifest.json"
"""Name of the file that lists the size and SHA-256 of the other files in its folder."""

Entry = dict[str, Any]
"""Size (``bytes``) and hash (``sha256``) of a file."""

Entries = dict[str, Entry]
"""Entries of a manifest by file name."""

Content = bytes | Callable[[], bytes]
"""Content of a file, or a function that returns it when the file is written, so that only one file at a time is in memory."""

_SURROGATE_ERRORS = "backslashreplace"
"""``errors`` argument of ``str.encode``: escapes lone surrogates, which file names can contain but UTF-8 cannot."""

_PARTIAL = re.compile(r".\.partial-[0-9a-f]{8}$")

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "your disk quota is used up; free some space",
    errno.EFBIG: "the file would exceed the maximum file size of this system; free some space or raise the limit (ulimit -f)",
    errno.EACCES: "permission denied; choose another folder or change the folder's permissions",
    errno.EPERM: "permission denied; choose another folder or change the folder's permissions",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ENOTDIR: "found a file where this path needs a folder; choose another path or move the file",
    errno.EEXIST: "found a file where this path needs a folder; choose another path or move the file",
    errno.EISDIR: "expected a file, found a folder with that name; choose another name",
    errno.ENOENT: "the parent folder does not exist; create that folder first",
    errno.ELOOP: "expected a regular file, found a symbolic link with that name; choose another name or remove the link",
    errno.EIO: "the disk reports a hardware error; choose another disk",
}


@contextmanager
def convert_disk_errors(path: Path, kept: str = "existing files are unchanged") -> Iterator[None]:
    """Convert an ``OSError`` raised in the ``with`` block to a DiskError.

    Args:
        path: the path named in the error message.
        kept: last clause of the error message, on the state of the disk after the error.
    """
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise DiskError(f"cannot write {path}: {reason}; {kept}") from error


def write_file(path: Path, content: Content) -> None:
    """Write ``content`` to ``path`` atomically and durably.

    Raises:
        DiskError: the file could not be written; the previous content of ``path`` is unchanged.
    """
    _check_regular_target(path)
    partial = _partial_path(path)
    with convert_disk_errors(path):
        try:
            write_new_file(partial, content)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def write_stream(path: Path, produce: Callable[[BinaryIO], None]) -> None:
    """Write a file atomically and durably, as ``write_file``, by a function that writes to the open file part by part.

    Raises:
        DiskError: the file could not be written; the previous content of ``path`` is unchanged.
    """
    _check_regular_target(path)
    partial = _partial_path(path)
    with convert_disk_errors(path):
        try:
            with partial.open("xb") as file:
                produce(file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def check_writable(path: Path) -> None:
    """Check that ``write_file`` can write to ``path`` now, by a new file beside it, which is removed at once.

    Raises:
        DiskError: the file could not be written.
    """
    _check_regular_target(path)
    partial = _partial_path(path)
    with convert_disk_errors(path):
        partial.open("xb").close()
        partial.unlink()


def write_folder(path: Path, files: Mapping[str, Content]) -> None:
    """Write a folder with ``files`` and their manifest to ``path`` atomically and durably, as ``new_folder``.

    Raises:
        DiskError: the folder could not be written; the previous folder ``path`` is unchanged.
    """
    with new_folder(path) as (folder, entries):
        for name, content in files.items():
            entries[name] = write_new_file(folder / name, content)


@contextmanager
def new_folder(path: Path, format_version: int = FORMAT_VERSION) -> Iterator[tuple[Path, Entries]]:
    """Write a folder and its manifest to ``path`` atomically and durably; the ``with`` block writes its files.

    The new folder is written beside ``path``. Then an existing folder at ``path`` is renamed, the new folder is renamed to ``path``, and
    the old one is removed. Between the two renames ``path`` does not exist.

    Yields:
        The new folder, under a partial name, and the entries of its manifest, to which the block adds those of its files.

    Raises:
        DiskError: the folder could not be written; the previous folder ``path`` is unchanged.
    """
    partial, old = _partial_path(path), _partial_path(path)
    entries: Entries = {}
    with convert_disk_errors(path):
        try:
            partial.mkdir()
            yield partial, entries
            assert MANIFEST not in entries and all(name == Path(name).name for name in entries), "expected plain file names"
            write_manifest(partial, entries, format_version)
            if path.exists():
                if not path.is_dir():
                    raise OSError(errno.ENOTDIR, "")
                path.rename(old)
            partial.rename(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            if old.exists() and not path.exists():
                old.rename(path)
            raise
    sync_folder(path.parent)
    if old.exists():
        remove(old)


def write_manifest(folder: Path, entries: Entries, format_version: int = FORMAT_VERSION) -> None:
    """Write ``manifest.json`` of an existing folder, which lists size and SHA-256 of its other files."""
    write_file(folder / MANIFEST, json_bytes({"format_version": format_version, "files": entries}))


def json_bytes(value: object) -> bytes:
    """Serialize ``value`` to indented JSON with a final newline."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode(errors=_SURROGATE_ERRORS)


def append_line(path: Path, line: str, sync: bool = False) -> None:
    """Append a line to a file; a failed write leaves no part of the line.

    If a killed process left an incomplete last line, a newline is added first, so that the new line is separate.

    Args:
        path: the file, created if missing; a symbolic link is refused.
        line: text without a newline.
        sync: call fsync before returning.

    Raises:
        DiskError: the line could not be written; the earlier lines are unchanged.
        ConfigError: this system cannot lock files.
    """
    require_file_locks()
    with convert_disk_errors(path, "its earlier lines are unchanged"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            lock_file(descriptor, wait=True)
            size = os.fstat(descriptor).st_size
            incomplete = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = (b"\n" if incomplete else b"") + line.encode(errors=_SURROGATE_ERRORS) + b"\n"
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
                if sync:
                    os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents, and sync them to disk; do nothing if the folder exists."""
    with convert_disk_errors(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        while True:
            try:
                path.mkdir(parents=True, exist_ok=True)
                break
            except FileExistsError:  # also raised if a folder existed and was removed before mkdir examined it
                if _is_blocked(path):
                    raise
    for folder in missing:
        sync_folder(folder.parent)


def remove(path: Path) -> None:
    """Remove a file, a symbolic link or a folder with its content.

    A folder is first renamed to a partial name, so that a half-removed folder is never found at ``path``.
    """
    with convert_disk_errors(path, "the path could not be removed"):
        if path.is_dir() and not path.is_symlink():
            renamed = _partial_path(path)
            path.rename(renamed)
            shutil.rmtree(renamed)
        else:
            path.unlink(missing_ok=True)


def remove_partial_files(folder: Path) -> None:
    """Remove the partial files and folders left in ``folder`` by a killed process."""
    for entry in list(folder.iterdir()):
        if _PARTIAL.search(entry.name):
            remove(entry)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder to disk with fsync, so that new files survive a power failure.

    Does nothing on Windows, which cannot open folders.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    with convert_disk_errors(folder, "its newest files are written but may be lost in a power failure"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems have no fsync for folders
                raise
        finally:
            os.close(descriptor)


def _partial_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")


def write_new_file(path: Path, content: Content) -> Entry:
    """Write a new file, sync it with fsync and return its manifest entry."""
    return write_new_stream(path, (content() if callable(content) else content,))


def write_new_stream(path: Path, parts: Iterable[bytes | memoryview]) -> Entry:
    """Write a new file from consecutive parts, sync it with fsync and return its manifest entry."""
    n_bytes, total = 0, hashlib.sha256()
    with path.open("xb") as file:
        for part in parts:
            file.write(part)
            total.update(part)
            n_bytes += len(part)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": n_bytes, "sha256": total.hexdigest()}


def _is_blocked(path: Path) -> bool:
    """Return whether ``path`` exists and is not a folder."""
    try:
        return not stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _check_regular_target(path: Path) -> None:
    """Raise DiskError if ``path`` is a link, a folder or a device, which the rename of the new file would replace."""
    with convert_disk_errors(path):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, "")
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, "")
        if not stat.S_ISREG(mode):
            raise OSError(0, "expected a regular file, found a device or a pipe; choose another name")
