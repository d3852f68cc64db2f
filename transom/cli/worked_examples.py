"""``transom worked-examples``: recompute the numbers that five articles on the Transformer print."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.output import JsonOption, print_result
from transom.cli.terminal_width import fit_columns, fit_text
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.lab.worked_examples import Result

EXAMPLES = """
transom worked-examples
transom worked-examples --article 2 --errata
transom worked-examples --json
"""

app = typer.Typer(add_completion=False)


@app.command()
def worked_examples(
    article: Annotated[
        str | None, typer.Option("--article", metavar="N", help="Article to recompute, such as 2 or 002. Default: all.", show_default=False)
    ] = None,
    errata: Annotated[bool, typer.Option("--errata", help="Print the errata only, each explained.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Recompute every number that five articles on the Transformer print, with transom's own layers and the articles' matrices.

    The verdict is "agrees at the printed precision", "agrees given the article's own earlier rounding", or "erratum" with the right value.
    Inputs that an article assumes are "given". docs/worked-examples.md has the same numbers as a lesson.
    """
    with gc_frozen_imports():
        from transom.lab.examples import ERRATUM, load_articles
        from transom.lab.report import to_record, to_records
        from transom.lab.worked_examples import check_all

    numbers = [each.number for each in load_articles()]
    wanted = numbers if article is None else [article.zfill(3)]
    if article == "" or wanted[0] not in numbers:
        raise ConfigError(f"--article: expected the number of an article, from {numbers[0]} to {numbers[-1]}, found {article!r}")
    results = [result for result in check_all().values() if result.example.article in wanted]
    shown = [result for result in results if result.verdict == ERRATUM] if errata else results
    print_result({**to_records(results), "examples": list(map(to_record, shown))}, as_json, _lines(results, set(wanted), errata))


def _lines(results: "Sequence[Result]", articles: set[str], errata: bool) -> Iterable[str]:
    """Yield the table of examples, or the errata, and the counts."""
    from transom.lab.report import conceptual_lines, errata_lines, summary_lines, table_rows

    if errata:
        lines = (*errata_lines(results), "", "formulas and statements", *conceptual_lines(articles))
        yield from map(fit_text, lines)
    else:
        yield from fit_columns(table_rows(results), n_left=6, n_title=3)
    yield from ("", *map(fit_text, summary_lines(results)))
