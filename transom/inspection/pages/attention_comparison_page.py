"""Comparison of attention methods as tables, for the terminal and as a self-contained HTML page."""

from collections.abc import Iterator, Mapping, Sequence
from xml.etree.ElementTree import Element

from transom.files.message import as_sentence
from transom.inspection.attention_comparison import AttentionComparison, MethodCost
from transom.inspection.messages.tables import message
from transom.inspection.pages.html_tables import html_table
from transom.inspection.pages.line_chart import Line, line_chart
from transom.inspection.pages.markup import node
from transom.inspection.pages.number_format import format_compact, format_percent
from transom.inspection.pages.page import SectionContent, render_page


def columns() -> list[str]:
    """Return the column headings of a table of methods."""
    return [*(message(f"comparison.{name}") for name in ("attention", "error", "weights_error")), "ms", "MB"]


def cells(cost: MethodCost) -> list[str]:
    """Format the costs of a method, one cell per column of ``columns``."""
    errors = ["" if error is None else format_percent(error, 2) for error in (cost.output_error, cost.weights_error)]
    return [cost.kind, *errors, f"{1e3 * cost.seconds:.3f}", format_compact(cost.bytes / 1e6)]


def sections(found: AttentionComparison) -> Iterator[tuple[str, Sequence[MethodCost]]]:
    """Yield the title and the costs of a table per attention layer, then per number of tokens."""
    yield from ((message("comparison.layer", layer=address, n=found.tokens[address]), costs) for address, costs in found.layers.items())
    yield from ((message("comparison.length", n=length), costs) for length, costs in found.lengths.items())


def error_charts(lengths: Mapping[int, Sequence[MethodCost]]) -> list[Element]:
    """Draw the error of each method over the number of tokens: a chart per family of methods, all with the same axes.

    Args:
        lengths: costs of each method by number of tokens.

    Returns:
        The charts; an empty list if no method is measured at two lengths.
    """
    points = dict[str, list[tuple[float, float]]]()
    for length, costs in sorted(lengths.items()):
        for cost in costs:
            if cost.output_error is not None and not cost.kind.startswith("exact"):
                points.setdefault(cost.kind, []).append((length, 100 * cost.output_error))
    families = dict[str, list[Line]]()
    for kind, of_kind in points.items():
        families.setdefault(kind.replace(",", "").split()[0], []).append(Line(kind, of_kind))
    families = {family: lines for family, lines in families.items() if any(len(line.points) > 1 for line in lines)}
    if not families:
        return []
    tokens, largest = (min(lengths), max(lengths)), max(error for of_kind in points.values() for _, error in of_kind)
    figures = []
    for family, lines in families.items():
        title = message("comparison.error_of", family=family)
        chart = line_chart(
            title, lines, x_label=message("comparison.tokens"), from_zero=True, x_range=tokens, y_range=(0, largest), x_log=True
        )
        figures.append(node("figure", node("h3", title), chart))
    return [node("div", *figures, class_="curves")]


def comparison_page(name: str, found: AttentionComparison, notes: Sequence[str]) -> str:
    """Render a comparison as an HTML page; text from data is escaped.

    Args:
        name: name of the run.
        found: the measurements.
        notes: caveats, one paragraph each.
    """
    mean = message("comparison.mean", n=len(found.layers))
    parts: list[SectionContent] = [
        (None, mean, [html_table(columns(), list(map(cells, found.averages)))] if len(found.layers) > 1 else []),
        (None, message("comparison.over_length"), error_charts(found.lengths)),
    ]
    parts += [(None, heading, [html_table(columns(), list(map(cells, costs)))]) for heading, costs in sections(found)]
    sentences = (node("li", as_sentence(note), class_="soft") for note in notes)
    title = message("comparison.page", name=name)
    return render_page(title, title, parts, above=[node("ul", *sentences)])
