"""Data report on labeled images, with sizes, classes, duplicates, contradictory labels and overlap of splits."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from transom.config.vision import ImageClassifierConfig
from transom.data.images.image_files import Images
from transom.data.reports import findings
from transom.data.reports.report import DataReport
from transom.data.split import Splits
from transom.files.message import phrase

MAX_REDUCTION = 4
"""Factor by which images may be reduced without a hint that a larger size keeps more detail."""


def report_images(splits: Splits[Images], classes: Sequence[str], model: ImageClassifierConfig, noun: str = "image") -> DataReport:
    """Examine the labeled images of a run and return a data report.

    Args:
        splits: images of all splits.
        classes: names of the classes by index.
        model: the model section of the recipe, which determines the size to which images are resized.
        noun: singular noun for a sample, such as "image".

    Returns:
        A report with these statistics of each split:

        - ``{noun}s``: size, origin and number of duplicates.
        - ``classes``: number of samples of each class.

        If the training images are resized, ``pixels`` contains their median width and height, and the size to which they are resized.
    """
    parts, train = splits.parts, splits.train
    keys = {name: part.digests for name, part in parts.items()}
    counts = findings.class_counts({name: part.labels for name, part in parts.items()}, classes)
    ignored = phrase(
        "data.ignored_files",
        "{name}: {files} among the {samples} ignored, because their suffix is not that of a {sample}",
        name=findings.split_name("train"),
        files=findings.count_noun(train.n_ignored, "file"),
        samples=f"{noun}s",
        sample=noun,
    )
    pixels = _median_size(train)
    problems = [
        *findings.contradiction_problems(
            train.digests,
            train.labels,
            lambda i: train.names[i],
            noun,
            phrase("data.other_class_of_file", "another class than an earlier equal file:"),
        ),
        *findings.overlap_problems(keys, noun),
        *findings.rare_class_problems(counts["train"], noun),
        *([ignored] if train.n_ignored else []),
    ]
    sizes = findings.split_sizes(parts, keys, noun)
    resized = _resizing_lines(pixels, model)

    def details(name: str) -> list[str]:
        return [f"classes: {findings.format_class_fractions(counts[name])}", *(resized if name == "train" else [])]

    statistics: dict[str, Any] = {f"{noun}s": sizes, "classes": counts}
    if resized and pixels is not None:
        statistics["pixels"] = {"train": {"median width": pixels[0], "median height": pixels[1], "resized to": model.image_size}}
    return DataReport(problems, statistics, findings.summarize_sizes(sizes, noun, details), findings.reading_notes(parts))


def _median_size(images: Images) -> tuple[int, int] | None:
    """Return the median width and the median height of images in pixels; None for data that are no images."""
    if images.sizes is None:
        return None
    width, height = np.quantile(images.sizes, 0.5, axis=0, method="nearest").tolist()
    return int(width), int(height)


def _resizing_lines(pixels: tuple[int, int] | None, model: ImageClassifierConfig) -> list[str]:
    """Return a line on how images are resized; none if their median size is that of the model.

    Args:
        pixels: median width and height of the images.
        model: the model section of the recipe.
    """
    size = model.image_size
    if pixels is None or pixels == (size, size):
        return []
    cropped = "cropped to the central square and " if pixels[0] != pixels[1] else ""
    enlarged = min(pixels) < size
    hint = ", which adds no detail; a smaller model.image_size takes less time" if enlarged else _detail_hint(pixels, model)
    return [f"pixels: median {pixels[0]:,} x {pixels[1]:,}, {cropped}{'enlarged' if enlarged else 'resized'} to {size} x {size}{hint}"]


def _detail_hint(pixels: tuple[int, int], model: ImageClassifierConfig) -> str:
    """Return how to keep more detail of images that the model reads at a much smaller size; empty if they lose little."""
    size = model.image_size
    if min(pixels) <= MAX_REDUCTION * size:
        return ""
    larger = min(2 * size, model.max_image_size)
    if larger == size:
        return "; a larger model.image_size keeps more detail, but requires a larger model.patch_size"
    return f"; model.image_size={larger} keeps more detail and takes about {(larger / size) ** 2:.1g} times as long"
