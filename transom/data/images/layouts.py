"""Recognition of how images are labeled: by class folders, split folders, file names or tables of labels."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from transom.data.text.table_columns import LABEL, Column
from transom.data.text.tabular import read_table
from transom.errors import DataError

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "valid"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Split of each recognized name of a split folder, with the folder's name in lower case."""

_IMAGE = Column("image", ("image", "file_name", "filename", "file", "image_path", "path", "image_id", "id", "name"))
_NUMBERED = re.compile(r"(?P<label>.*?[^\W\d_])[ ._-]*\d+")
"""Pattern of a file name that consists of a class and a number, such as ``Abyssinian_12`` or ``cat.0``."""


class LabeledNames(NamedTuple):
    """Names of images and their classes.

    Attributes:
        names: paths of the images, sorted.
        labels: class of each image.
        notes: messages about where the classes were found.
        table: name of the table from which the classes were read, or None.
    """

    names: list[str]
    labels: list[str]
    notes: tuple[str, ...] = ()
    table: str | None = None


def split_folders(names: Sequence[str]) -> dict[str, str]:
    """Return the folder of each split by the name of the split.

    The result is empty unless every image lies in a class folder inside a split folder.

    Args:
        names: paths of the images, with ``/`` between folders.

    >>> split_folders(["train/cat/1.jpg", "train/dog/1.jpg", "val/cat/2.jpg"])
    {'train': 'train', 'valid': 'val'}
    >>> split_folders(["cat/1.jpg", "dog/1.jpg"])
    {}
    """
    parts = [PurePosixPath(name).parts for name in names]
    folders = {each[0] for each in parts}
    if not all(len(each) > 2 for each in parts) or not all(folder.casefold() in SPLITS for folder in folders):
        return {}
    return {SPLITS[folder.casefold()]: folder for folder in sorted(folders)}


def label_images(names: Sequence[str], origin: str, tables: Mapping[str, Path]) -> LabeledNames:
    """Find the class of each image by its folder, by a table of labels, or by its file name.

    A table or the file names are used only if all images are in the same folder.

    Args:
        names: paths of the images relative to ``origin``, with ``/`` between folders.
        origin: the folder of the images, for messages.
        tables: tabular files in the folder, by name.

    Raises:
        DataError: some images have no class.
    """
    paths = [PurePosixPath(name) for name in names]
    shared_folders = len({path.parent for path in paths}) == 1
    if shared_folders and (found := _labels_of_table(names, tables)) is not None:
        return found
    if all(len(path.parts) > 1 for path in paths) and not shared_folders:
        return LabeledNames(sorted(names), [name.split("/", 1)[0] for name in sorted(names)])
    outside = next((path.name for path in paths if len(path.parts) == 1), None)
    if shared_folders and (found := _labels_of_names(names)) is not None:
        return found
    if outside is None:
        return LabeledNames(sorted(names), [name.split("/", 1)[0] for name in sorted(names)])
    raise DataError(
        f"{origin}: expected each image in a folder named after its class, found {outside} outside of any; move it into one, or add a table"
        " labels.csv with the columns image and label"
    )


def _labels_of_names(names: Sequence[str]) -> LabeledNames | None:
    """Read the classes from file names that consist of a class and a number.

    The result is None unless all file names have this form and there are at least two classes, each with at least two images.
    """
    found = [_NUMBERED.fullmatch(PurePosixPath(name).stem) for name in sorted(names)]
    labels = [match["label"] for match in found if match is not None]
    counts = Counter(labels)
    if len(labels) < len(names) or len(counts) < 2 or min(counts.values()) < 2:
        return None
    return LabeledNames(sorted(names), labels, (f"the {len(counts)} classes are taken from the file names, as in {sorted(names)[0]}",))


def _labels_of_table(names: Sequence[str], tables: Mapping[str, Path]) -> LabeledNames | None:
    """Read the classes from the first table that lists all images, or return None if there is no such table.

    A table may list the images by file names with or without suffix.
    """
    for name, path in sorted(tables.items()):
        try:
            table = read_table(path, (_IMAGE, LABEL), (None, None), True, numbers_as_text=True)
        except DataError:
            continue  # a table of another kind, without these columns
        of_file = {PurePosixPath(file).name: label.strip() for file, label in zip(*table.columns, strict=True)}
        of_stem = {PurePosixPath(file).stem: label for file, label in of_file.items()}
        labels = [of_file.get(PurePosixPath(each).name) or of_stem.get(PurePosixPath(each).stem) for each in sorted(names)]
        if all(labels):
            return LabeledNames(sorted(names), [str(label) for label in labels], (f"the classes are taken from {name}",), name)
    return None
