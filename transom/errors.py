"""Errors that a user can cause and correct.

The message of an error states in one line what was expected, what was found, where, and what to change. The command line prints the message
after ``error:`` and exits with code 2.
"""


class TransomError(ValueError):
    """Error that the user can correct, such as a wrong file, recipe field or option."""

    @property
    def line(self) -> str:
        """The message; a ``transom.files.message.Message`` where other languages have it."""
        return str(self) if not self.args or not isinstance(self.args[0], str) else self.args[0]


class ConfigError(TransomError):
    """Error in a recipe, an option or an argument."""


class DataError(TransomError):
    """Error in input data, which cannot be read or are inconsistent."""


class CheckpointError(TransomError):
    """Error in a run folder or checkpoint, which is missing, damaged or incompatible."""


class DivergedError(TransomError):
    """Training ended because losses or gradients of many consecutive steps were not finite."""


class UnreadableFileError(DataError):
    """A file with one sample, such as an image, that cannot be read or decoded.

    Attributes:
        reason: why it cannot be read, in a few words, for a message about several files. By default what the message says after "found".
    """

    def __init__(self, message: str, reason: str = "") -> None:
        """Store the message and the reason."""
        super().__init__(message)
        self.reason = reason or message.rpartition("found ")[2].partition(";")[0]


class AmbiguousDataError(DataError):
    """A file that can be read in two ways.

    Attributes:
        question: the question that the user has to answer with yes or no.
        field: the field that the answer sets.
    """

    field: str

    def __init__(self, message: str, question: str = "") -> None:
        """Store the message and the question to ask in a terminal."""
        super().__init__(message)
        self.question = question


class AmbiguousHeaderError(AmbiguousDataError):
    """A file whose first line may be a header or a sample."""

    field = "header"


class AmbiguousLabelsError(AmbiguousDataError):
    """A file whose labels contain ``|``, which may separate several labels or belong to the name of a class."""

    field = "multi_label"


class DiskError(TransomError):
    """Error while writing a file, for example because the disk is full, permission is missing, or a folder has the name of the file."""
