"""Comparison of attention methods as tables, for the terminal and as a self-contained HTML page without scripts."""

from collections.abc import Iterator, Sequence

from transom.inspection.comparison import Comparison, Cost
from transom.inspection.figures import compact, percent, whole
from transom.inspection.markup import node
from transom.inspection.page import page
from transom.inspection.tables import table

COLUMNS = ["attention", "error", "weights error", "ms", "MB"]


def cells(cost: Cost) -> list[str]:
    """Format the costs of a method, one cell per column of ``COLUMNS``."""
    errors = ["" if error is None else percent(error, 2) for error in (cost.output_error, cost.weights_error)]
    return [cost.kind, *errors, f"{1e3 * cost.seconds:.3f}", compact(cost.bytes / 1e6)]


def sections(found: Comparison) -> Iterator[tuple[str, Sequence[Cost]]]:
    """Yield (title, costs) of each attention layer, then of each length."""
    yield from ((f"{address}, {whole(found.tokens[address])} tokens", costs) for address, costs in found.layers.items())
    yield from ((f"{whole(length)} tokens", costs) for length, costs in found.lengths.items())


def comparison_page(name: str, found: Comparison, notes: Sequence[str]) -> str:
    """Render a comparison as an HTML page; text from data is escaped.

    Args:
        name: name of the run.
        found: the measurements.
        notes: caveats, one paragraph each.
    """
    title, every = f"{name}: attention methods", [(f"Mean over {len(found.layers)} attention layers", found.kinds), *sections(found)]
    parts = ((None, heading, [table(COLUMNS, [cells(cost) for cost in costs])]) for heading, costs in every)
    return page(title, title, parts, above=[node("p", note, class_="soft") for note in notes])
