"""Errors that a user can cause and correct.

A message states in one line what was expected, what was found, where, and what to change.
The command line prints it after ``error:`` and exits with 2.
"""


class TransomError(ValueError):
    """A user's mistake in a file, a field, an option or the machine."""


class ConfigError(TransomError):
    """A recipe or setting that does not match the schema."""


class DataError(TransomError):
    """Input data that cannot be read or that contradict each other."""


class CheckpointError(TransomError):
    """A run folder or checkpoint that is missing, damaged or incompatible."""


class DiskError(TransomError):
    """A file that could not be written: disk full, no permission, a folder in its place."""
