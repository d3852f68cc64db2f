"""Locks on open files: held until the file is closed, also by the process's death."""

try:
    import fcntl
except ImportError:  # Windows has none, and its own locks hold ranges of bytes against reading too
    fcntl = None  # type: ignore[assignment]

from transom.errors import ConfigError


def refuse_without_locks() -> None:
    """Refuse to write where no lock can be had, before anything is made.

    Raises:
        ConfigError: this system has no such locks.
    """
    if fcntl is None:
        raise ConfigError(
            "expected a system that locks files by Python's module fcntl, found none; train and evaluate on Linux or macOS (loading a run"
            " and predicting need no lock)"
        )


def lock(descriptor: int, wait: bool) -> None:
    """Lock an open file against all other openings of it, after ``refuse_without_locks``.

    Args:
        descriptor: of the file.
        wait: for whoever holds it, as long as that takes.

    Raises:
        BlockingIOError: somebody holds it, and this call should not wait.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
