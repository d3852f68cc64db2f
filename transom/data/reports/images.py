"""Data report on labeled images, with sizes, classes, duplicates, contradictory labels and overlap of splits."""

from collections.abc import Sequence

from transom.data.images.image_files import Images
from transom.data.reports import findings
from transom.data.reports.report import DataReport
from transom.data.split import Splits


def report_images(splits: Splits[Images], classes: Sequence[str], noun: str = "image") -> DataReport:
    """Examine the labeled images of a run and return a data report.

    Args:
        splits: images of all splits.
        classes: names of the classes by index.
        noun: singular noun for a sample, such as "image".

    Returns:
        A report with these statistics of each split:

        - ``{noun}s``: size, origin and number of duplicates.
        - ``classes``: number of samples of each class.
    """
    parts, train = splits.parts, splits.train
    keys = {name: part.digests for name, part in parts.items()}
    counts = findings.class_counts({name: part.labels for name, part in parts.items()}, classes)
    ignored = (
        f"train: {findings.count_noun(train.n_ignored, 'file')} among the {noun}s ignored, because their suffix is not that of a {noun}"
    )
    problems = [
        *findings.contradiction_problems(
            train.digests, train.labels, lambda i: train.names[i], noun, "another class than an earlier equal file:"
        ),
        *findings.overlap_problems(keys, noun),
        *findings.rare_class_problems(counts["train"], noun),
        *([ignored] if train.n_ignored else []),
    ]
    sizes = findings.split_sizes(parts, keys, noun)
    lines = findings.summarize_sizes(sizes, noun, lambda name: [f"classes: {findings.format_class_fractions(counts[name])}"])
    return DataReport(problems, {f"{noun}s": sizes, "classes": counts}, lines, findings.reading_notes(parts))
