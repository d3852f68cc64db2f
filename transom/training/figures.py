"""What a validation measures, as people read it."""

from collections.abc import Mapping
from typing import NamedTuple


class Measured(NamedTuple):
    """One figure of a validation.

    Attributes:
        key: its field in ``metrics.jsonl``.
        name: for people.
        digits: behind the point.
        unit: where it has one.
    """

    key: str
    name: str
    digits: int
    unit: str = ""


VALIDATED = (
    Measured("loss", "loss", 4, "nats"),
    Measured("perplexity", "perplexity", 3),
    Measured("bits_per_byte", "bits a byte", 4),
    Measured("accuracy", "accuracy", 2, "%"),
    Measured("bleu", "BLEU", 2),
    Measured("chrf", "chrF", 2),
)
"""The figures, the most general first; a validation has some of them. The loss is a mean over what is counted."""

COUNTED = {
    "translation": "target tokens",
    "language": "tokens",
    "instruction": "answer tokens",
    "masked": "masked tokens",
    "classification": "texts",
    "embedding": "pairs",
    "image-classification": "images",
}
"""By task: what has a label each, and what losses and speeds are of."""


def spelled(figures: Mapping[str, float | None]) -> list[str]:
    """Write those figures that there are.

    >>> spelled({"chrf": 51.234, "loss": 1.5, "step": 300})
    ['loss 1.5000 nats', 'chrF 51.23']
    """
    found = [(figure, value) for figure in VALIDATED if (value := figures.get(figure.key)) is not None]
    return [f"{figure.name} {value:.{figure.digits}f} {figure.unit}".rstrip() for figure, value in found]
