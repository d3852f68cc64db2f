"""What is known of images before step 1: sizes, classes, doubles, contradictions, overlap."""

from collections.abc import Sequence

from transom.data.images.images import Images
from transom.data.reports import findings
from transom.data.reports.report import Report
from transom.data.split import Splits


def report_images(splits: Splits[Images], classes: Sequence[str]) -> Report:
    """Examine the images of a run.

    Args:
        splits: all images.
        classes: by number.

    Returns:
        For each split its size, origin and doubles (``images``) and the number of images of each class (``classes``).
    """
    parts, train = splits.parts, splits.train
    keys = {name: part.digests for name, part in parts.items()}
    counts = findings.class_counts({name: part.labels for name, part in parts.items()}, classes)
    ignored = f"train: {findings.counted(train.n_ignored, 'file')} beside the images passed over: no images by their suffix"
    problems = [
        *findings.contradictions(train.digests, train.labels, lambda i: train.names[i], "image", "class than the same file before:"),
        *findings.overlaps(keys, "image"),
        *findings.rare_classes(counts["train"], "image"),
        *([ignored] if train.n_ignored else []),
    ]
    images = findings.sizes(parts, keys, "image")
    lines = findings.summary(images, "image", lambda name: [f"classes: {findings.class_shares(counts[name])}"])
    return Report(problems, {"images": images, "classes": counts}, lines)


"""The name that the tasks still import; goes when they import ``Report``."""
