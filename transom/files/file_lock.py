"""Exclusive locks on open files, held until the file is closed or the process ends."""

try:
    import fcntl
except ImportError:  # missing on Windows, whose own locks also block reading of the locked byte range
    fcntl = None  # type: ignore[assignment]

from pathlib import Path

from transom.errors import ConfigError


def require_file_locks() -> None:
    """Raise an error on systems without ``fcntl`` locks, such as Windows; call this before writing anything.

    Raises:
        ConfigError: Python has no ``fcntl`` module.
    """
    if fcntl is None:
        raise ConfigError(
            "expected a system with Python's fcntl module for file locks, found none; train and evaluate on Linux or macOS (loading a run"
            " and predicting do not lock files)"
        )


def lock_file(descriptor: int, wait: bool) -> None:
    """Lock an open file exclusively; call ``require_file_locks`` first.

    Args:
        descriptor: descriptor of the open file.
        wait: wait until the lock is free, without a time limit.

    Raises:
        BlockingIOError: the file is locked through another descriptor, and ``wait`` is false.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def is_locked(path: Path) -> bool:
    """Return whether another process holds a lock on a file; False on systems without such locks, and if the file is missing."""
    if fcntl is None:
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
