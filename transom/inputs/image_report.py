"""What is known of images before step 1: sizes, classes, doubles, contradictions, overlap."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from transom.inputs.image_loader import ImageSplits
from transom.inputs.images import Images
from transom.inputs.report import SHOWN, counted


@dataclass(frozen=True)
class ImageReport:
    """The facts of the images.

    Attributes:
        problems: sentences that name what a person should look at.
        images: for each split its size, origin, doubles, and files beside the images that are none.
        classes: for each split the number of images of each class.
    """

    problems: list[str]
    images: dict[str, dict[str, str | int]]
    classes: dict[str, dict[str, int]]

    def to_json(self) -> dict[str, Any]:
        """Give the report as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Give the report for people, the problems last."""
        lines = []
        for name, facts in self.images.items():
            n = int(facts["images"])
            shares = [f"{label} {share / n:.1%}" for label, share in self.classes[name].items()]
            shown = ", ".join(shares[:10]) + (f", and {len(shares) - 10} classes more" if len(shares) > 10 else "")
            lines += [f"{name}: {counted(n, 'image')} ({facts['from']})", f"  classes: {shown}"]
        return [*lines, *(f"look at this: {problem}" for problem in self.problems)]


def report_images(splits: ImageSplits, classes: Sequence[str]) -> ImageReport:
    """Examine the images of a run.

    Args:
        splits: all images.
        classes: by number.
    """
    parts = {name: part for name, part in splits._asdict().items() if part is not None}
    counts = {name: Counter(part.labels) for name, part in parts.items()}
    problems, known = _contradictions(splits.train), set(splits.train.digests)
    for name, part in parts.items():
        if name != "train" and (also := sum(digest in known for digest in part.digests)):
            problems.append(f"{name}: {also:,} of {counted(len(part), 'image')} also in training, so its figures flatter")
    if few := [label for label in classes if counts["train"][label] < 10]:
        problems.append(f"train: fewer than 10 images of {', '.join(map(repr, few[:SHOWN]))}{', ...' * (len(few) > SHOWN)}")
    if splits.train.n_ignored:
        problems.append(f"train: {counted(splits.train.n_ignored, 'file')} beside the images passed over: no images by their suffix")
    return ImageReport(
        problems=problems,
        images={
            name: {"images": len(part), "from": part.name, "doubles": len(part) - len(set(part.digests))} for name, part in parts.items()
        },
        classes={name: {label: count[label] for label in (*classes, *sorted(set(count) - set(classes)))} for name, count in counts.items()},
    )


def _contradictions(train: Images) -> list[str]:
    """Name images that stand in training with two classes."""
    first: dict[str, int] = {}
    again = [i for i, digest in enumerate(train.digests) if train.labels[first.setdefault(digest, i)] != train.labels[i]]
    if not again:
        return []
    places = ", ".join(f"{train.names[first[train.digests[i]]]} and {train.names[i]}" for i in again[:SHOWN])
    return [f"train: {counted(len(again), 'image')} with another class than the same file before: {places}{', ...' * (len(again) > SHOWN)}"]
