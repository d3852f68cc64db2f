"""The errors that a person can cause and mend.

A message says, in one line, what was expected, what was found, where, and what to change.
The command line prints it behind ``error:`` and exits with 2.
"""


class TransomError(ValueError):
    """A user's mistake: a file, a field, a flag or a machine that is not as it must be."""


class ConfigError(TransomError):
    """A recipe or a setting that does not fit the schema."""


class DataError(TransomError):
    """Input data that cannot be read or do not fit together."""


class CheckpointError(TransomError):
    """A run folder or checkpoint that is missing, damaged or of another making."""


class DiskError(TransomError):
    """A file that could not be written: disk full, no permission, a folder in its place."""
