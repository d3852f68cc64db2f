"""What is known of images before step 1: sizes, classes, doubles, contradictions, overlap."""

from collections.abc import Sequence
from dataclasses import dataclass

from transom.data.images.images import Images
from transom.data.reports.report import (
    Report,
    Row,
    class_counts,
    class_shares,
    contradictions,
    counted,
    overlaps,
    rare_classes,
    sizes,
    sizes_told,
)
from transom.data.split import Splits


@dataclass(frozen=True)
class ImageReport(Report):
    """The facts of the images.

    Attributes:
        images: for each split its size, origin and doubles.
        classes: for each split the number of images of each class.
    """

    images: dict[str, Row]
    classes: dict[str, dict[str, int]]

    def figures(self) -> list[str]:
        """Give all but the problems for people."""
        told = sizes_told(self.images, "image")
        return [line for name in told for line in (told[name], f"  classes: {class_shares(self.classes[name])}")]


def report_images(splits: Splits[Images], classes: Sequence[str]) -> ImageReport:
    """Examine the images of a run.

    Args:
        splits: all images.
        classes: by number.
    """
    parts, train = splits.parts, splits.train
    keys = {name: part.digests for name, part in parts.items()}
    counts = class_counts({name: part.labels for name, part in parts.items()}, classes)
    ignored = f"train: {counted(train.n_ignored, 'file')} beside the images passed over: no images by their suffix"
    return ImageReport(
        problems=[
            *contradictions(train.digests, train.labels, lambda i: train.names[i], "image", "class than the same file before:"),
            *overlaps(keys, "image"),
            *rare_classes(counts["train"], "image"),
            *([ignored] if train.n_ignored else []),
        ],
        images=sizes(parts, keys, "image"),
        classes=counts,
    )
