"""Write the picture of a command, and its numbers as CSV beside it."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from transom.checkpoints.output_paths import check_output_file
from transom.cli.output import print_note

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


def save_picture(picture: "Picture", path: Path) -> None:
    """Write a picture and its numbers, and print a note with its text alternative."""
    for each in dict.fromkeys((path, path.with_suffix(".csv"))):
        picture.save(each)
    print_note(f"wrote {path} and its numbers: {picture.alt}")
