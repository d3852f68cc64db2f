"""What a validation measures, as people read it."""

from collections.abc import Mapping

from transom.config.recipe import Metric
from transom.config.registry import registered_tasks

VALIDATED = (
    Metric("loss", "loss", 4, "nats"),
    Metric("perplexity", "perplexity", 3),
    Metric("bits_per_byte", "bits a byte", 4),
    Metric("accuracy", "accuracy", 2, "%"),
    Metric("bleu", "BLEU", 2),
    Metric("chrf", "chrF", 2),
)
"""The figures of several tasks, the most general first; a validation has some of them. The loss is a mean over what is counted."""


def metrics() -> list[Metric]:
    """List all figures that validations may have: those of several tasks, then those that single tasks bring."""
    found = dict[str, Metric]()
    for metric in (*VALIDATED, *(metric for recipe in registered_tasks() for metric in recipe.METRICS)):
        found.setdefault(metric.key, metric)
    return list(found.values())


def spelled(figures: Mapping[str, float | None]) -> list[str]:
    """Write those figures that there are; those of one language, whose keys end in its tag, stand together behind the others.

    >>> spelled({"chrf": 51.234, "loss": 1.5, "step": 300})
    ['loss 1.5000 nats', 'chrF 51.23']
    >>> spelled({"loss": 1.5, "loss/de": 1.4, "bleu/de": 20.1})
    ['loss 1.5000 nats', 'de (loss 1.4000 nats, BLEU 20.10)']
    """
    return [*_spelled(figures, ""), *(f"{tag} ({', '.join(_spelled(figures, f'/{tag}'))})" for tag in tags(figures))]


def _spelled(figures: Mapping[str, float | None], ending: str) -> list[str]:
    found = [(figure, value) for figure in metrics() if (value := figures.get(figure.key + ending)) is not None]
    return [f"{figure.name} {value:.{figure.digits}f} {figure.unit}".rstrip() for figure, value in found]


def tags(figures: Mapping[str, object]) -> list[str]:
    """Name the target languages that there are figures of.

    >>> tags({"loss": 1.5, "loss/de": 1.4, "loss/fr": 1.6, "bleu/de": 20.1})
    ['de', 'fr']
    """
    return list(dict.fromkeys(key.split("/", 1)[1] for key in figures if "/" in key))
