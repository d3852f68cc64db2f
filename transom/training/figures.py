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
    Measured("f1", "entity F1", 2, "%"),
    Measured("bleu", "BLEU", 2),
    Measured("chrf", "chrF", 2),
)
"""The figures, the most general first; a validation has some of them. The loss is a mean over what is counted."""


def spelled(figures: Mapping[str, float | None]) -> list[str]:
    """Write those figures that there are; those of one language, whose keys end in its tag, stand together behind the others.

    >>> spelled({"chrf": 51.234, "loss": 1.5, "step": 300})
    ['loss 1.5000 nats', 'chrF 51.23']
    >>> spelled({"loss": 1.5, "loss/de": 1.4, "bleu/de": 20.1})
    ['loss 1.5000 nats', 'de (loss 1.4000 nats, BLEU 20.10)']
    """
    return [*_spelled(figures, ""), *(f"{tag} ({', '.join(_spelled(figures, f'/{tag}'))})" for tag in tags(figures))]


def _spelled(figures: Mapping[str, float | None], ending: str) -> list[str]:
    found = [(figure, value) for figure in VALIDATED if (value := figures.get(figure.key + ending)) is not None]
    return [f"{figure.name} {value:.{figure.digits}f} {figure.unit}".rstrip() for figure, value in found]


def tags(figures: Mapping[str, object]) -> list[str]:
    """Name the target languages that there are figures of.

    >>> tags({"loss": 1.5, "loss/de": 1.4, "loss/fr": 1.6, "bleu/de": 20.1})
    ['de', 'fr']
    """
    return list(dict.fromkeys(key.split("/", 1)[1] for key in figures if "/" in key))
