"""Metrics of a classifier as lines of text, as a section of the training report, and as a page."""

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from transom.decoding.predictors.class_metrics import N_BINS, ClassificationMetrics
from transom.decoding.predictors.multi_label import MultiLabelMetrics
from transom.files.message import as_sentence
from transom.inspection.messages.tables import message
from transom.inspection.pages.classification_pictures import confusion_matrix_svg, reliability_diagram
from transom.inspection.pages.describe import unit, unit_named
from transom.inspection.pages.html_tables import html_table, scrollable
from transom.inspection.pages.markup import node, shorten
from transom.inspection.pages.multi_label_section import headings, multi_label_sections, summary_sentence
from transom.inspection.pages.number_format import format_count, format_percent
from transom.inspection.pages.page import SectionContent, render_page
from transom.inspection.pages.run_summary import RunSummary

MAX_MATRIX_CLASSES = 25
"""Maximum number of classes of which a page draws the confusion matrix."""

MAX_CLASSES = 50
"""Maximum number of classes whose metrics are listed: of more classes those with the lowest F1."""

MAX_ITEM_LENGTH = 300
"""Maximum number of characters of a text in the list of errors of a page."""

MAX_CONFUSED = 10
"""Maximum number of confused pairs that are listed."""

Table = tuple[list[str], list[list[str]]]
"""Column headings, and rows of cells."""


def class_table(metrics: ClassificationMetrics) -> Table:
    """Return precision, recall, F1 and number of samples per class, at most ``MAX_CLASSES`` of them, and the means over all classes."""
    shown = metrics.classes
    if len(shown) > MAX_CLASSES:
        shown = sorted(shown, key=lambda each: each[1].f1)[:MAX_CLASSES]
    rows = [
        [label, *(format_percent(score, 1) for score in (each.precision, each.recall, each.f1)), format_count(each.n)]
        for label, each in shown
    ]
    means = [(message(f"classification.{kind}_average"), getattr(metrics, kind)) for kind in ("macro", "weighted")]
    rows += [[name, *(format_percent(score, 1) for score in mean), format_count(metrics.n)] for name, mean in means]
    return headings("class", "precision", "recall", "f1", "support"), rows


def class_table_title(metrics: ClassificationMetrics) -> str:
    """Return the heading of ``class_table``, which says whether classes are left out."""
    if (n := len(metrics.classes)) <= MAX_CLASSES:
        return message("classification.per_class")
    return message("classification.lowest_classes", most=MAX_CLASSES, number=n)


def confused_table(metrics: ClassificationMetrics) -> Table:
    """Return the pairs of classes that are confused most often."""
    rows = [[label, found, format_count(n)] for label, found, n in metrics.confused[:MAX_CONFUSED]]
    return headings("class", "predicted", "number"), rows


def confusion_table(metrics: ClassificationMetrics) -> Table:
    """Return the confusion matrix: a row per class, a column per predicted class."""
    classes = [label for label, _ in metrics.classes]
    return [*headings("class"), *classes], [
        [label, *(format_count(metrics.confusion.get((label, found), 0)) for found in classes)] for label in classes
    ]


def calibration_table(metrics: ClassificationMetrics) -> Table:
    """Return the bins of the expected calibration error."""
    rows = [
        [
            message("classification.from_to", low=format_percent(each.low, 1), high=format_percent(each.high, 1)),
            format_percent(each.confidence, 1),
            format_percent(each.accuracy, 1),
            format_count(each.n),
        ]
        for each in metrics.calibration
    ]
    return headings("confidence", "mean", "accuracy", "number"), rows


def abstention_table(metrics: ClassificationMetrics) -> Table:
    """Return coverage and accuracy of a classifier that abstains below a confidence."""
    rows = [
        [
            f"{each.threshold:g}",
            format_percent(each.coverage, 1),
            "" if each.accuracy is None else format_percent(each.accuracy, 1),
            format_count(each.n),
        ]
        for each in metrics.abstention
    ]
    return headings("threshold", "coverage", "accuracy", "number"), rows


def calibration_sentence(metrics: ClassificationMetrics) -> str:
    """State the expected calibration error and its definition."""
    return message("classification.calibration_error", error=format_percent(metrics.calibration_error, 1), bins=N_BINS)


def _sections(metrics: ClassificationMetrics) -> Iterator[tuple[str, Sequence[Element]]]:
    """Yield the title and the content of each part."""
    yield class_table_title(metrics), [html_table(*class_table(metrics))]
    if len(metrics.classes) <= MAX_MATRIX_CLASSES:
        note = node("p", message("classification.matrix_note"), class_="soft")
        matrix = confusion_matrix_svg([label for label, _ in metrics.classes], metrics.confusion)
        yield message("classification.matrix"), [note, scrollable(matrix)]
    if metrics.confused:
        yield message("classification.confused"), [html_table(*confused_table(metrics))]
    yield (
        message("classification.calibration"),
        [
            node("p", as_sentence(calibration_sentence(metrics)), class_="soft"),
            node("div", node("figure", reliability_diagram(metrics.calibration)), class_="pictures"),
            html_table(*calibration_table(metrics)),
        ],
    )
    note = node("p", as_sentence(abstention_note()), class_="soft")
    yield message("classification.abstention"), [note, html_table(*abstention_table(metrics))]
    if metrics.errors:
        rows = [[shorten(each.item, MAX_ITEM_LENGTH), each.label, each.found, format_percent(each.p, 1)] for each in metrics.errors]
        yield message("classification.errors"), [html_table(["", *headings("class", "predicted", "confidence")], rows)]


def abstention_note() -> str:
    """Say how to read ``abstention_table``."""
    return message("classification.abstention_note")


def classification_section(run: RunSummary) -> list[Element]:
    """Show the metrics of the saved weights on the validation data of a run."""
    if run.classification is None:
        return []
    note = node("p", message("classification.note", number=run.classification.n, unit=unit(run.recipe, "many")))
    parts = (part for title, content in _sections_of(run.classification) for part in (node("h3", title), *content))
    return [note, *parts]


def _sections_of(metrics: ClassificationMetrics | MultiLabelMetrics) -> Iterator[tuple[str, Sequence[Element]]]:
    return multi_label_sections(metrics) if isinstance(metrics, MultiLabelMetrics) else _sections(metrics)


def classification_page(name: str, data: str, noun: str, metrics: ClassificationMetrics | MultiLabelMetrics) -> str:
    """Render the metrics of a classifier on labeled data as an HTML page; text from data is escaped.

    Args:
        name: name of the run.
        data: the labeled data.
        noun: plural noun for the samples.
        metrics: the metrics.
    """
    title = message("classification.page", name=name, data=data)
    parts: list[SectionContent] = [(None, heading, content) for heading, content in _sections_of(metrics)]
    if isinstance(metrics, MultiLabelMetrics):
        return render_page(title, title, parts, lead=as_sentence(summary_sentence(metrics, noun)))
    lead = message("classification.accuracy_of", accuracy=f"{metrics.accuracy:.2f}", number=metrics.n, unit=unit_named(noun, "many"))
    return render_page(title, title, parts, lead=lead)
