"""Layouts of image sets: class folders, split folders, class names in file names, and tables of labels."""

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
"""Names of split folders, in lower case."""

_IMAGE = Column("image", ("image", "file_name", "filename", "file", "image_path", "path", "image_id", "id", "name"))
_NUMBERED = re.compile(r"(?P<label>.*?[^\W\d_])[ ._-]*\d+")
"""A file name of a class and a number, such as ``Abyssinian_12`` or ``cat.0``."""


class LabeledNames(NamedTuple):
    """Images with their classes.

    Attributes:
        names: names of the images, sorted.
        labels: class of each image.
        notes: what was recognized, one sentence each.
        table: name of the table with the classes, if there is one.
    """

    names: list[str]
    labels: list[str]
    notes: tuple[str, ...] = ()
    table: str | None = None


def split_folders(names: Sequence[str]) -> dict[str, str]:
    """Return the folder of each split, by the split's name, if all images are in folders of splits with a class folder inside.

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
    """Find the class of each image: by its folder, by a table of labels, or by its file name.

    Args:
        names: paths of the images in the folder, with ``/`` between folders.
        origin: the folder, for messages.
        tables: tables in the folder, by name.

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
    """Read the classes from file names of a class and a number; None unless every class has several images."""
    found = [_NUMBERED.fullmatch(PurePosixPath(name).stem) for name in sorted(names)]
    labels = [match["label"] for match in found if match is not None]
    counts = Counter(labels)
    if len(labels) < len(names) or len(counts) < 2 or min(counts.values()) < 2:
        return None
    return LabeledNames(sorted(names), labels, (f"the {len(counts)} classes are taken from the file names, as in {sorted(names)[0]}",))


def _labels_of_table(names: Sequence[str], tables: Mapping[str, Path]) -> LabeledNames | None:
    """Read the classes from the first table that lists all images, by file name with or without suffix; None without one."""
    for name, path in sorted(tables.items()):
        try:
            table = read_table(path, (_IMAGE, LABEL), (None, None), True, numbers_as_text=True)
        except DataError:
            continue  # another table, without such columns
        of_file = {PurePosixPath(file).name: label.strip() for file, label in zip(*table.columns, strict=True)}
        of_stem = {PurePosixPath(file).stem: label for file, label in of_file.items()}
        labels = [of_file.get(PurePosixPath(each).name) or of_stem.get(PurePosixPath(each).stem) for each in sorted(names)]
        if all(labels):
            return LabeledNames(sorted(names), [str(label) for label in labels], (f"the classes are taken from {name}",), name)
    return None
