"""Locks on open files, held until the file is closed or the process ends."""

try:
    import fcntl
except ImportError:  # missing on Windows, whose own locks also block reading of the locked byte range
    fcntl = None  # type: ignore[assignment]

from transom.errors import ConfigError


def require_file_locks() -> None:
    """Raise ConfigError if this system has no ``fcntl`` locks; call it before anything is written.

    Raises:
        ConfigError: this system has no such locks.
    """
    if fcntl is None:
        raise ConfigError(
            "expected a system with Python's fcntl module for file locks, found none; train and evaluate on Linux or macOS (loading a run"
            " and predicting do not lock files)"
        )


def lock_file(descriptor: int, wait: bool) -> None:
    """Lock an open file exclusively; call ``require_file_locks`` first.

    Args:
        descriptor: file descriptor.
        wait: wait until the lock is free, without a time limit.

    Raises:
        BlockingIOError: the lock is held elsewhere and ``wait`` is false.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
