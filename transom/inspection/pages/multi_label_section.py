"""Metrics of a classifier of texts with any number of labels, as tables for the terminal and as HTML sections."""

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from transom.decoding.predictors.class_metrics import N_BINS
from transom.decoding.predictors.multi_label import LabelError, MultiLabelMetrics
from transom.files.message import as_sentence
from transom.inspection.messages.tables import message
from transom.inspection.pages.classification_pictures import reliability_diagram
from transom.inspection.pages.describe import unit_named
from transom.inspection.pages.html_tables import html_table
from transom.inspection.pages.markup import node
from transom.inspection.pages.number_format import format_count, format_percent

MAX_LABELS = 50
"""Maximum number of labels whose metrics are listed: of more labels those with the lowest F1."""

MAX_ITEM_LENGTH = 300
"""Maximum number of characters of a text in the list of errors of a page."""


def label_table(metrics: MultiLabelMetrics) -> tuple[list[str], list[list[str]]]:
    """Return precision, recall, F1, number of texts and threshold per label, and the means over the labels."""
    shown = metrics.classes if len(metrics.classes) <= MAX_LABELS else sorted(metrics.classes, key=lambda each: each[1].f1)[:MAX_LABELS]
    rows = [
        [label, *_percents(each.precision, each.recall, each.f1), format_count(each.n), f"{metrics.thresholds[label]:.3f}"]
        for label, each in shown
    ]
    n = sum(each.n for _, each in metrics.classes)
    means = (("micro", metrics.micro), ("macro", metrics.macro), ("weighted", metrics.weighted))
    rows += [[message(f"classification.{kind}_average"), *_percents(*mean), format_count(n), ""] for kind, mean in means]
    return headings("label", "precision", "recall", "f1", "support", "threshold"), rows


def headings(*names: str) -> list[str]:
    """Return column headings of tables of classes."""
    return [message(f"columns.{name}") for name in names]


def label_table_title(metrics: MultiLabelMetrics) -> str:
    """Return the heading of ``label_table``, which says whether labels are left out."""
    if (n := len(metrics.classes)) <= MAX_LABELS:
        return message("classification.per_class")
    return message("classification.lowest_labels", most=MAX_LABELS, number=n)


def probability_table(metrics: MultiLabelMetrics) -> tuple[list[str], list[list[str]]]:
    """Return the bins of the expected calibration error."""
    rows = [
        [
            message("classification.from_to", low=format_percent(each.low, 1), high=format_percent(each.high, 1)),
            *_percents(each.confidence, each.accuracy),
            format_count(each.n),
        ]
        for each in metrics.calibration
    ]
    return headings("probability", "mean", "frequency", "number"), rows


def probability_sentence(metrics: MultiLabelMetrics) -> str:
    """State the expected calibration error and its definition."""
    return message("classification.label_calibration_error", error=format_percent(metrics.calibration_error, 1), bins=N_BINS)


def summary_sentence(metrics: MultiLabelMetrics, noun: str) -> str:
    """State the scores over all labels."""
    return message(
        "classification.label_summary",
        micro=f"{metrics.micro.f1:.2%}",
        macro=f"{metrics.macro.f1:.2%}",
        subset_accuracy=f"{metrics.subset_accuracy:.2f}",
        hamming_loss=f"{metrics.hamming_loss:.4f}",
        number=metrics.n,
        unit=unit_named(noun, "many"),
    )


def describe_error(error: LabelError) -> str:
    """State a wrong decision, such as "drama 3.0%, missing"."""
    key = "classification.missing_label" if error.expected else "classification.wrong_label"
    return message(key, label=error.label, p=format_percent(error.p, 1))


def multi_label_sections(metrics: MultiLabelMetrics) -> Iterator[tuple[str, Sequence[Element]]]:
    """Yield the title and the content of each part."""
    yield label_table_title(metrics), [html_table(*label_table(metrics))]
    diagram = node("div", node("figure", reliability_diagram(metrics.calibration)), class_="pictures")
    note = node("p", as_sentence(probability_sentence(metrics)), class_="soft")
    yield message("classification.calibration"), [note, diagram, html_table(*probability_table(metrics))]
    if metrics.errors:
        rows = [[each.item[:MAX_ITEM_LENGTH], describe_error(each)] for each in metrics.errors]
        yield message("classification.errors"), [html_table(["", *headings("label")], rows)]


def _percents(*fractions: float) -> list[str]:
    return [format_percent(fraction, 1) for fraction in fractions]
