"""Help and options of tasks for the command line: plain data, so that ``--help`` imports no pydantic."""

from typing import NamedTuple


class DataOption(NamedTuple):
    """An option of ``transom train`` that names a person's own files.

    Attributes:
        flag: as in ``--labeled-data``.
        metavar: what stands for its value.
        help: one line.
        part: of the recipe's data that it names, ``train`` or ``valid``; empty for what goes with every part that is named.
        field: of that part, which it sets.
        needs: another option that must stand beside it, if any.
        why: what that option is, for the error that it is missing.
        repeated: it may be given several times, and sets a list.
        is_path: its value is a path, which starts from the current folder; else it is text.
        is_text: the files hold text, of which a tokenizer can be trained.
    """

    flag: str
    metavar: str
    help: str
    part: str
    field: str
    needs: str = ""
    why: str = ""
    repeated: bool = False
    is_path: bool = True
    is_text: bool = True


class Command(NamedTuple):
    """A command, as in `transom train`.

    Attributes:
        name: as in ``transom translate``.
        help: one line.
        module: has its ``app`` and ``EXAMPLES``; left out, the file of its name in ``transom/cli/``.
    """

    name: str
    help: str
    module: str = ""


class TaskHelp(NamedTuple):
    """Help and options of a task.

    Each ``schema.py`` defines one as ABOUT. For packaged tasks, ``task_registry.list_task_help`` evaluates it from the source: it may use
    only literals and the names in this module.

    Attributes:
        options: of ``transom train``.
        order: its place where tasks are listed, from low to high.
        scored_by: what ``transom classify --labeled-data`` scores its models by, where it has classes.
        commands: those that the task brings; a command that serves several tasks is brought by one of them.
    """

    options: tuple[DataOption, ...]
    order: int = 100
    scored_by: str = ""
    commands: tuple[Command, ...] = ()


def format_flags(options: tuple[DataOption, ...]) -> str:
    """Name the options that say what to train on.

    >>> format_flags(PAIRS), format_flags(TEXT)
    ('--source and --target', '--text')
    """
    return " and ".join(option.flag for option in options if option.part == "train")


_LINES = "two files, line by line translations of each other"
PAIRS = (
    DataOption("--source", "FILE", "Training source, one sentence a line (.gz too).", "train", "source", "--target", _LINES),
    DataOption("--target", "FILE", "Its translations, line by line.", "train", "target", "--source", _LINES),
    DataOption("--valid-source", "FILE", "Validation source; left out, 1% is split off.", "valid", "source", "--valid-target", _LINES),
    DataOption("--valid-target", "FILE", "Validation target.", "valid", "target", "--valid-source", _LINES),
)
"""Of the tasks that learn from pairs of texts."""

_LEARNED = "the text to train on"
TEXT = (
    DataOption(
        "--text",
        "PATH",
        "For a language model: a text file or a folder (.gz too); may be repeated.",
        "train",
        "files",
        repeated=True,
    ),
    DataOption("--valid-text", "PATH", "Validation text; left out, 5% is split off.", "valid", "files", "--text", _LEARNED, repeated=True),
    DataOption(
        *("--suffix", ".EXT", "Ending of the files that are taken out of folders.", "", "suffixes", "--text", _LEARNED),
        repeated=True,
        is_path=False,
    ),
)
"""Of the tasks that learn from plain text."""
