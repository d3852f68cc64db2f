"""Write the picture of a command, and its numbers as CSV beside it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transom.checkpoints.output_paths import check_output_file
from transom.cli.output import print_note
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.inspection.plots.picture import Picture


def check_picture_path(path: Path | None, inputs: Iterable[Path | None] = ()) -> None:
    """Check the file of a picture, and that of its numbers, before anything is computed.

    Args:
        path: the file; None if no picture is wanted.
        inputs: files and folders that the command reads.

    Raises:
        ConfigError: one of both would replace an input or a file of a run, or pictures have no such format.
    """
    if path is None:
        return
    for each in (path, path.with_suffix(".csv")):
        check_output_file(each, inputs)
    from transom.inspection.plots.picture import check_suffix

    check_suffix(path)


def check_numbers_path(path: Path | None, columns: Sequence[str]) -> None:
    """Check that the numbers of a picture, whose file the user does not name, replace no other file than earlier ones.

    Args:
        path: file of the picture; None if no picture is wanted.
        columns: names of the columns of its numbers.

    Raises:
        ConfigError: the CSV file beside the picture has another first line.
    """
    if path is None or path == (numbers := path.with_suffix(".csv")) or not numbers.is_file():
        return
    header = ",".join(columns)
    with numbers.open(encoding="utf-8", errors="replace") as file:
        first = file.readline(len(header) + 1).rstrip("\n")
    if first != header:
        raise ConfigError(
            f"{numbers}: expected no file, or one with the columns {header}, for the numbers of {path}, found another file; give another"
            " --out, or move the file"
        )


def save_picture(picture: "Picture", path: Path) -> None:
    """Write a picture and its numbers, and print a note with their files and its text alternative."""
    paths = list(dict.fromkeys((path, path.with_suffix(".csv"))))
    for each in paths:
        picture.save(each)
    print_note(f"wrote {' and '.join(map(str, paths))}: {picture.alt}")
