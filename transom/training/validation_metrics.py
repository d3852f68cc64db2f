"""Names and formats of validation metrics."""

from collections.abc import Mapping

from transom.config.recipe import Metric
from transom.config.task_registry import registered_recipes

COMMON_METRICS = (
    Metric("loss", "loss", 4, "nats"),
    Metric("perplexity", "perplexity", 3),
    Metric("bits_per_byte", "bits per byte", 4),
    Metric("accuracy", "accuracy", 2, "%"),
    Metric("bleu", "BLEU", 2),
    Metric("chrf", "chrF", 2),
)
"""Metrics shared by several tasks, the most general first; each task reports some of these."""


def all_metrics() -> list[Metric]:
    """List all metrics that a validation can report: first those shared by several tasks, then those of single tasks."""
    found = dict[str, Metric]()
    for metric in (*COMMON_METRICS, *(metric for recipe in registered_recipes() for metric in recipe.METRICS)):
        found.setdefault(metric.key, metric)
    return list(found.values())


def format_metrics(metrics: Mapping[str, float | None]) -> list[str]:
    """Format metrics with their names and units. Metrics of one target language (``loss/de``) form one string at the end.

    >>> format_metrics({"chrf": 51.234, "loss": 1.5, "step": 300})
    ['loss 1.5000 nats', 'chrF 51.23']
    >>> format_metrics({"loss": 1.5, "loss/de": 1.4, "bleu/de": 20.1})
    ['loss 1.5000 nats', 'de (loss 1.4000 nats, BLEU 20.10)']
    """
    return [*_format_metrics(metrics, ""), *(f"{tag} ({', '.join(_format_metrics(metrics, f'/{tag}'))})" for tag in language_tags(metrics))]


def _format_metrics(metrics: Mapping[str, float | None], suffix: str) -> list[str]:
    found = [(metric, value) for metric in all_metrics() if (value := metrics.get(metric.key + suffix)) is not None]
    return [f"{metric.name} {value:.{metric.digits}f} {metric.unit}".rstrip() for metric, value in found]


def language_tags(metrics: Mapping[str, object]) -> list[str]:
    """Return the tags of the target languages that have metrics of their own.

    >>> language_tags({"loss": 1.5, "loss/de": 1.4, "loss/fr": 1.6, "bleu/de": 20.1})
    ['de', 'fr']
    """
    return list(dict.fromkeys(key.split("/", 1)[1] for key in metrics if "/" in key))
