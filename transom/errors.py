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


class AmbiguousDataError(DataError):
    """A file that can be read in two ways.

    Attributes:
        question: the question that the user has to answer with yes or no.
        field: the field that the answer sets.
    """

    field: str

    def __init__(self, message: str, question: str = "") -> None:
        """Store the message, and the question for a terminal."""
        super().__init__(message)
        self.question = question


class AmbiguousHeaderError(AmbiguousDataError):
    """A file whose first line may be a header or a sample."""

    field = "header"


class AmbiguousLabelsError(AmbiguousDataError):
    """A file whose labels contain ``|``, which may separate several labels or belong to the name of a class."""

    field = "multi_label"


class DiskError(TransomError):
    """A file that could not be written: disk full, no permission, a folder in its place."""
