"""Comparison of attention methods as tables, for the terminal and as a self-contained HTML page without scripts."""

from collections.abc import Iterator, Sequence

from transom.inspection.attention_comparison import AttentionComparison, MethodCost
from transom.inspection.html_tables import html_table
from transom.inspection.markup import node
from transom.inspection.number_format import format_compact, format_count, format_percent
from transom.inspection.page import render_page

COLUMNS = ["attention", "error", "weights error", "ms", "MB"]


def cells(cost: MethodCost) -> list[str]:
    """Format the costs of a method, one cell per column of ``COLUMNS``."""
    errors = ["" if error is None else format_percent(error, 2) for error in (cost.output_error, cost.weights_error)]
    return [cost.kind, *errors, f"{1e3 * cost.seconds:.3f}", format_compact(cost.bytes / 1e6)]


def sections(found: AttentionComparison) -> Iterator[tuple[str, Sequence[MethodCost]]]:
    """Yield the title and the costs of a table per attention layer, then per number of tokens."""
    yield from ((f"{address}, {format_count(found.tokens[address])} tokens", costs) for address, costs in found.layers.items())
    yield from ((f"{format_count(length)} tokens", costs) for length, costs in found.lengths.items())


def comparison_page(name: str, found: AttentionComparison, notes: Sequence[str]) -> str:
    """Render a comparison as an HTML page; text from data is escaped.

    Args:
        name: name of the run.
        found: the measurements.
        notes: caveats, one paragraph each.
    """
    title, every = f"{name}: attention methods", [(f"Mean over {len(found.layers)} attention layers", found.averages), *sections(found)]
    parts = ((None, heading, [html_table(COLUMNS, [cells(cost) for cost in costs])]) for heading, costs in every)
    return render_page(title, title, parts, above=[node("p", note, class_="soft") for note in notes])
