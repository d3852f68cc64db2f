"""Write files and folders so that a name holds the old content or the new, never a mixture, even through ``kill -9``.

Content is written aside under ``NAME.partial-XXXXXXXX``, forced to the disk, renamed, and the folder that holds the name is forced
to the disk too. What a killed process leaves is such a partial name; ``remove_leftovers`` clears it.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transom.errors import DiskError
from transom.files.lock import lock, refuse_without_locks

FORMAT_VERSION = 2
"""Version of everything in a run folder: configuration, checkpoints, manifests. Since 2, files of tensors carry the run and the step."""

MANIFEST = "manifest.json"
"""The file of a folder that lists the size and SHA-256 of the others."""

Content = bytes | Callable[[], bytes]
"""What a file will hold, or a function that makes it when its turn comes, so that one file at a time is in memory."""

_ESCAPE = "backslashreplace"
"""How half a surrogate pair, which names of files can hold and UTF-8 cannot, is spelled: as JSON spells it."""

_PARTIAL = re.compile(r".\.partial-[0-9a-f]{8}$")

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "your disk quota is used up; free some space",
    errno.EFBIG: "the file would be larger than this system allows; free some space or raise the limit (ulimit -f)",
    errno.EACCES: "permission denied; choose another place or change the folder's permissions",
    errno.EPERM: "permission denied; choose another place or change the folder's permissions",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ENOTDIR: "a file stands where a folder should be; choose another place or move that file away",
    errno.EEXIST: "a file stands where a folder should be; choose another place or move that file away",
    errno.EISDIR: "a folder stands where a file should be; choose another name",
    errno.ENOENT: "its folder does not exist; make it first",
    errno.ELOOP: "a symbolic link stands there; choose another name or remove the link",
    errno.EIO: "the disk reports a hardware error; choose another disk",
}


@contextmanager
def disk_errors(path: Path, kept: str = "nothing there was changed") -> Iterator[None]:
    """Turn an ``OSError`` within into a DiskError that names ``path`` and says what was ``kept``."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
        raise DiskError(f"cannot write {path}: {reason}; {kept}") from error


def write_file(path: Path, content: Content) -> None:
    """Put ``content`` under ``path``, durably and at once.

    Raises:
        DiskError: it could not be written; what was under ``path`` is unchanged.
    """
    _refuse_special(path)
    partial = _partial(path)
    with disk_errors(path):
        try:
            _write(partial, content)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    sync_folder(path.parent)


def write_folder(path: Path, files: Mapping[str, Content]) -> None:
    """Put a folder of ``files`` and their manifest under ``path``, durably and at once.

    A folder that is already there is replaced; between its removal and the new one's arrival there is, for a moment, none.

    Raises:
        DiskError: it could not be written; what was under ``path`` is unchanged.
    """
    assert MANIFEST not in files and all(name == Path(name).name for name in files), "expected plain file names"
    partial, old = _partial(path), _partial(path)
    with disk_errors(path):
        try:
            partial.mkdir()
            write_manifest(partial, {name: _write(partial / name, content) for name, content in files.items()})
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


def write_manifest(folder: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Say in ``folder`` which files belong to it, with their sizes and hashes."""
    write_file(folder / MANIFEST, json_bytes({"format_version": FORMAT_VERSION, "files": dict(entries)}))


def json_bytes(value: object) -> bytes:
    """Spell ``value`` as readable JSON with a line end."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode(errors=_ESCAPE)


def append_line(path: Path, line: str, sync: bool = False) -> None:
    """Add a line to a file, whole or not at all unless the process is killed meanwhile; a torn line before it is ended first.

    Args:
        path: the file, made if there is none; never followed if it is a symbolic link.
        line: text without a line end.
        sync: force it to the disk before returning.

    Raises:
        DiskError: it could not be written; the earlier lines are unchanged.
        ConfigError: this system cannot lock files.
    """
    refuse_without_locks()
    with disk_errors(path, "its earlier lines are unchanged"):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        try:
            lock(descriptor, wait=True)
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = (b"\n" if torn else b"") + line.encode(errors=_ESCAPE) + b"\n"
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
    """Make a folder and those above it, durably; it may exist."""
    with disk_errors(path):
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        while True:
            try:
                path.mkdir(parents=True, exist_ok=True)
                break
            except FileExistsError:  # also where a folder was there, and was removed before it could be looked at
                if _stands_in_the_way(path):
                    raise
    for folder in missing:
        sync_folder(folder.parent)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder at once: a folder loses its name first, then its files."""
    with disk_errors(path, "it could not be removed"):
        if path.is_dir() and not path.is_symlink():
            aside = _partial(path)
            path.rename(aside)
            shutil.rmtree(aside)
        else:
            path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the partial files and folders that a killed process left in ``folder``."""
    for entry in list(folder.iterdir()):
        if _PARTIAL.search(entry.name):
            remove(entry)


def sync_folder(folder: Path) -> None:
    """Force a folder's list of names to the disk, where the system opens folders (Windows does not)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    with disk_errors(folder, "its newest names are in place but may not survive a power cut"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems know no fsync of a folder
                raise
        finally:
            os.close(descriptor)


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")


def _write(path: Path, content: Content) -> dict[str, Any]:
    """Write one new file, force it to the disk and return its line of the manifest."""
    data = content() if callable(content) else content
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _stands_in_the_way(path: Path) -> bool:
    """Tell whether something else than a folder is where one should be."""
    try:
        return not stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _refuse_special(path: Path) -> None:
    """Refuse to put a plain file in the place of a folder, a device, a pipe or a link: /dev/stdout is one."""
    with disk_errors(path):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, "")
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, "")
        if not stat.S_ISREG(mode):
            raise OSError(0, "a device or a pipe stands there; choose a plain file")
