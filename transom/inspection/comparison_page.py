"""A comparison of kinds of attention as tables, for a terminal and as one HTML page that needs no network and runs no script."""

from collections.abc import Iterator, Sequence

from transom.inspection.comparison import Comparison, Cost
from transom.inspection.figures import compact, percent, whole
from transom.inspection.markup import node
from transom.inspection.page import page
from transom.inspection.tables import table

COLUMNS = ["attention", "error", "error of weights", "ms", "MB"]


def cells(cost: Cost) -> list[str]:
    """Write what a kind costs, a column each of ``COLUMNS``."""
    errors = ["" if error is None else percent(error, 2) for error in (cost.output_error, cost.weights_error)]
    return [cost.kind, *errors, f"{1e3 * cost.seconds:.3f}", compact(cost.bytes / 1e6)]


def sections(found: Comparison) -> Iterator[tuple[str, Sequence[Cost]]]:
    """Give a title and the costs for each place, then for each length."""
    yield from ((f"{address}, {whole(found.tokens[address])} tokens", costs) for address, costs in found.layers.items())
    yield from ((f"{whole(length)} tokens", costs) for length, costs in found.lengths.items())


def comparison_page(name: str, found: Comparison, notes: Sequence[str]) -> str:
    """Write a comparison as a page; all text from the data is escaped.

    Args:
        name: of the run.
        found: what was measured.
        notes: what one has to know beside it.
    """
    title, every = f"{name}: kinds of attention", [(f"Mean of {len(found.layers)} places", found.kinds), *sections(found)]
    parts = ((None, heading, [table(COLUMNS, [cells(cost) for cost in costs])]) for heading, costs in every)
    return page(title, title, parts, above=[node("p", note, class_="soft") for note in notes])
