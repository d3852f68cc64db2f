"""Help and options of tasks for the command line: plain data, so that ``--help`` imports no pydantic."""

from typing import NamedTuple


class DataOption(NamedTuple):
    """An option of ``transom train`` that names the user's files.

    Attributes:
        flag: the option, such as ``--labeled-data``.
        metavar: placeholder of its value.
        help: help text of one line.
        part: part of the data, ``train`` or ``valid``; empty if it applies to every part that is given, ``data`` for a field of all data.
        field: field of the part that it sets.
        needs: another option that it requires.
        why: description of the required option, for the error if it is missing.
        repeated: whether it may be repeated and sets a list.
        is_path: whether its value is a path, relative to the current folder.
        is_text: whether a tokenizer can be trained on the files.
        is_flag: whether it takes no value and has a negative form, as in ``--header`` and ``--no-header``.
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
    is_flag: bool = False


def column_option(name: str, what: str, needs: str = "", why: str = "") -> DataOption:
    """Return the option that selects a column by name, or by index from 0."""
    help_text = f"Column of the {what}, by name or index from 0. Default: the column with a common name, such as {name}."
    return DataOption(f"--{name}-field", "NAME", help_text, "", f"{name}_field", needs, why, is_path=False)


HEADER = DataOption(
    *(
        "--header",
        "",
        "Whether the first line of a table is a header. Default: yes if the line contains common column names, such as text or label.",
        "",
        "header",
    ),
    is_path=False,
    is_flag=True,
)
TEXT_FIELD = column_option("text", "text")
SECOND_FIELD = DataOption(
    *("--second-field", "NAME", "Column of the second text of pairs, by name or index from 0. Default: none, single texts."),
    *("", "second_field"),
    is_path=False,
)
SKIP_DAMAGED = DataOption(
    *("--skip-damaged", "", "Whether damaged images or sounds are skipped. Default: training ends with an error that names them."),
    *("data", "skip_damaged"),
    is_path=False,
    is_text=False,
    is_flag=True,
)
"""Option of tasks on files with one sample each."""


class Command(NamedTuple):
    """A command of the command line.

    Attributes:
        name: name, such as ``translate``.
        help: help text of one line.
        module: module with its ``app`` and ``EXAMPLES``; default: the file of its name in ``transom/cli/``.
    """

    name: str
    help: str
    module: str = ""


class TaskHelp(NamedTuple):
    """Help and options of a task.

    Each ``schema.py`` defines one as ABOUT. For packaged tasks, ``task_registry.list_task_help`` evaluates it from the source: it may use
    only literals and the names in this module.

    Attributes:
        options: options of ``transom train``.
        order: sort key in lists of tasks, ascending.
        scored_by: metric of ``transom classify --labeled-data``, for tasks with classes.
        commands: the task's commands; a command that serves several tasks belongs to one of them.
        evaluated_by: command that measures a run on test data, with RUN in place of the folder, for errors of ``transom evaluate`` and
            ``transom compare``. Default: ``transom classify`` for tasks with this command, otherwise none.
    """

    options: tuple[DataOption, ...]
    order: int = 100
    scored_by: str = ""
    commands: tuple[Command, ...] = ()
    evaluated_by: str = ""


def format_flags(options: tuple[DataOption, ...]) -> str:
    """Format the options that name training data.

    >>> format_flags(PAIRS), format_flags(TEXT)
    ('--source and --target (or --pairs)', '--text')
    """
    required = [option for option in options if option.part == "train"]
    together = [option.flag for option in required if option.needs] or [option.flag for option in required]
    others = [option.flag for option in required if option.flag not in together]
    return " and ".join(together) + (f" (or {' or '.join(others)})" if others else "")


TABLES = ".tsv, .csv, .jsonl or .parquet"
_TABLE = "a table with both sides"
_LINES = "two files, line by line translations of each other"
PAIRS = (
    DataOption(
        "--source", "FILE", "File of source sentences for training, one per line (may be gzipped).", "train", "source", "--target", _LINES
    ),
    DataOption(
        "--target",
        "FILE",
        "File of target sentences for training. Line N belongs to line N of --source.",
        "train",
        "target",
        "--source",
        _LINES,
    ),
    DataOption(
        "--valid-source",
        "FILE",
        "File of source sentences for validation. Default: 1% of the training data.",
        "valid",
        "source",
        "--valid-target",
        _LINES,
    ),
    DataOption("--valid-target", "FILE", "File of target sentences for validation.", "valid", "target", "--valid-source", _LINES),
    DataOption("--pairs", "FILE", f"{TABLES} file of source and target sentences, in place of --source and --target.", "train", "pairs"),
    DataOption("--valid-pairs", "FILE", "File of sentence pairs for validation, in the format of --pairs.", "valid", "pairs"),
    column_option("source", "source sentence", "--pairs", _TABLE),
    column_option("target", "target sentence", "--pairs", _TABLE),
    HEADER,
)
"""Options of tasks on pairs of texts."""

_LEARNED = "the text to train on"
TEXT = (
    DataOption(
        "--text",
        "PATH",
        "For a language model: text file or folder to train on (may be gzipped). Repeatable.",
        "train",
        "files",
        repeated=True,
    ),
    DataOption(
        "--valid-text",
        "PATH",
        "Text file or folder for validation. Default: 5% of the training text.",
        "valid",
        "files",
        "--text",
        _LEARNED,
        repeated=True,
    ),
    DataOption(
        *("--suffix", ".EXT", "Suffix of the files to read from folders, such as .md. Repeatable.", "", "suffixes", "--text", _LEARNED),
        repeated=True,
        is_path=False,
    ),
    TEXT_FIELD,
)
"""Options of tasks on plain text."""
