"""Generate docs/worked-examples.md, the examples as a lesson: ``python -m transom.lab.lesson docs``."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from transom.lab.examples import ERRATUM, EXACT, GIVEN, ROUNDED, Section, load_articles, load_sections
from transom.lab.report import LAST_DIGITS, explain, format_place, format_printed, format_value, summary_lines
from transom.lab.worked_examples import Result, check_all

HEAD = """# Worked examples, recomputed

Five articles explain the Transformer by numbers. This page has every number that they print as a result or as an input. Each is
recomputed by transom's own layers with the articles' matrices. `make docs` writes the page, and `transom worked-examples` prints the same
on a terminal.

A number in the column "printed" is as the article has it; "recomputed" is computed from the given numbers only, without rounding. The
place is the article and its line, such as 002:308. There are three verdicts:

- agrees: the recomputed value rounds to the printed one.
- agrees, rounded: the article rounded an earlier value. The printed value follows from the numbers printed before it.
- erratum: neither. The section on [errata](#errata) explains each wrong step, and lists the values that follow from it.

Before a step is called wrong, these readings are tried. The step may read the numbers printed one, two or more steps before. These may
have further digits, which the article did not print. The result may be cut off instead of rounded.
"""

ERRATA_HEAD = """The steps that are wrong, in the order of the articles. The right value is computed from the given numbers, with all
earlier steps right; the value from the numbers printed before shows what is wrong in this step. Values that follow from a wrong step are
listed with the first one that they build on."""

WORDS = {EXACT: "agrees", ROUNDED: "agrees, rounded", ERRATUM: "**erratum**", GIVEN: "given"}


def lesson_page() -> str:
    """Return the content of docs/worked-examples.md."""
    results = list(check_all().values())
    lines = [HEAD.rstrip(), "", *_articles(), "", "```text", *summary_lines(results), "```", ""]
    for section in load_sections():
        lines += _section(section, [result for result in results if result.example.section == section.id])
    return "\n".join([*lines, *_errata(results), *_conceptual()]).rstrip() + "\n"


def _articles() -> Iterator[str]:
    """Yield the table of the articles."""
    yield "| article | title |"
    yield "| --- | --- |"
    for article in load_articles():
        yield f"| {article.number} | {article.title} |"


def _section(section: Section, results: Sequence[Result]) -> Iterator[str]:
    """Yield a section of the lesson, or a part of one: text, formula and table."""
    yield f"{'###' if section.is_part else '##'} {section.title}"
    yield ""
    yield section.text
    yield ""
    if section.formula:
        yield from ("```text", section.formula, "```", "")
    yield "| place | quantity | printed | recomputed | verdict |"
    yield "| --- | --- | --- | --- | --- |"
    for result in results:
        example = result.example
        symbol = f", {_code(example.symbol)}" if example.symbol else ""
        value = "" if result.verdict == GIVEN else format_value(result.right, example.printed, more=1)
        cells = (format_place(result), _cell(example.quantity) + symbol, format_printed(example.printed), value, WORDS[result.verdict])
        yield f"| {' | '.join(cells)} |"
    yield ""


def _errata(results: Sequence[Result]) -> Iterator[str]:
    """Yield the errata, wrong steps first, and the values that follow from each."""
    yield "## Errata"
    yield ""
    yield ERRATA_HEAD
    yield ""
    following = [result for result in results if result.verdict == ERRATUM and not result.own]
    for result in results:
        if result.own:
            yield from _erratum(result, [each for each in following if each.first == result.example.id])
    yield ""


def _erratum(result: Result, following: Sequence[Result]) -> Iterator[str]:
    """Yield the paragraph on a wrong step, and on the values that follow from it."""
    example = result.example
    yield f"- **{format_place(result)}**, {_cell(example.quantity)}: printed {format_printed(example.printed)}."
    if result.inherits:
        yield f"  From the numbers printed before: {format_value(result.from_inputs, example.printed, more=1)}."
    yield f"  Right: {format_value(result.right, example.printed, more=1)}."
    yield f"  {LAST_DIGITS if result.only_last_digits else ''}{_cell(explain(result))}"
    if following:
        lines = dict.fromkeys(str(each.example.lines[0]) for each in following)
        yield f"  Wrong as well from here on: line{'s' if len(lines) > 1 else ''} {', '.join(lines)}."


def _conceptual() -> Iterator[str]:
    """Yield formulas and statements that contradict themselves or each other, and wrong symbols."""
    yield "## Formulas and statements"
    yield ""
    yield "Formulas and statements that contradict themselves or one another, and wrong symbols."
    yield ""
    yield "| place | problem | right |"
    yield "| --- | --- | --- |"
    for article in load_articles():
        for each in article.conceptual:
            yield f"| {article.number}:{each.lines[0]} | {_cell(each.problem)} | {_cell(each.right)} |"


def _cell(text: str) -> str:
    """Escape what Markdown would read as a cell's end, as emphasis or as HTML."""
    for character in "|*_<>":
        text = text.replace(character, f"\\{character}")
    return text


def _code(text: str) -> str:
    """Format a symbol as code in a table."""
    return f"`{text}`".replace("|", "\\|")


if __name__ == "__main__":
    (Path(sys.argv[1]) / "worked-examples.md").write_text(lesson_page(), "utf-8")
