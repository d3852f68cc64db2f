"""Metrics of a classifier of texts with any number of labels, as tables for the terminal and as HTML sections."""

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from transom.decoding.predictors.class_metrics import N_BINS
from transom.decoding.predictors.multi_label import LabelError, MultiLabelMetrics
from transom.inspection.pages.classification_pictures import reliability_diagram
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
    means = (("micro average", metrics.micro), ("macro average", metrics.macro), ("weighted average", metrics.weighted))
    rows += [[name, *_percents(*mean), format_count(n), ""] for name, mean in means]
    return ["label", "precision", "recall", "F1", "support", "threshold"], rows


def label_table_title(metrics: MultiLabelMetrics) -> str:
    """Return the heading of ``label_table``, which says whether labels are left out."""
    if (n := len(metrics.classes)) <= MAX_LABELS:
        return "Precision, recall and F1"
    return f"Precision, recall and F1: the {MAX_LABELS} of {format_count(n)} labels with the lowest F1"


def probability_table(metrics: MultiLabelMetrics) -> tuple[list[str], list[list[str]]]:
    """Return the bins of the expected calibration error."""
    rows = [
        [
            f"{format_percent(each.low, 1)} to {format_percent(each.high, 1)}",
            *_percents(each.confidence, each.accuracy),
            format_count(each.n),
        ]
        for each in metrics.calibration
    ]
    return ["probability", "mean", "frequency", "number"], rows


def probability_sentence(metrics: MultiLabelMetrics) -> str:
    """State the expected calibration error and its definition."""
    return (
        f"expected calibration error {format_percent(metrics.calibration_error, 1)}: mean of |frequency - probability| of the labels over"
        f" {N_BINS} bins of equal width, weighted by their number of decisions (Guo et al. 2017, eq. 3)"
    )


def summary_sentence(metrics: MultiLabelMetrics, noun: str) -> str:
    """State the scores over all labels."""
    return (
        f"micro F1 {metrics.micro.f1:.2%}, macro F1 {metrics.macro.f1:.2%}, subset accuracy {metrics.subset_accuracy:.2f}%,"
        f" Hamming loss {metrics.hamming_loss:.4f} of {format_count(metrics.n)} {noun}"
    )


def describe_error(error: LabelError) -> str:
    """State a wrong decision, such as "drama 3.0%, missing"."""
    return f"{error.label} {format_percent(error.p, 1)}, {'missing' if error.expected else 'not a label of the text'}"


def multi_label_sections(metrics: MultiLabelMetrics) -> Iterator[tuple[str, Sequence[Element]]]:
    """Yield the title and the content of each part."""
    yield label_table_title(metrics), [html_table(*label_table(metrics))]
    sentence = probability_sentence(metrics)
    diagram = node("div", node("figure", reliability_diagram(metrics.calibration)), class_="pictures")
    note = node("p", f"{sentence[:1].upper()}{sentence[1:]}.", class_="soft")
    yield "Calibration", [note, diagram, html_table(*probability_table(metrics))]
    if metrics.errors:
        rows = [[each.item[:MAX_ITEM_LENGTH], describe_error(each)] for each in metrics.errors]
        yield "Most confident errors", [html_table(["", "label"], rows)]


def _percents(*fractions: float) -> list[str]:
    return [format_percent(fraction, 1) for fraction in fractions]
