"""The recomputed examples as text: for the command line, and as records for JSON."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

from transom.lab.examples import ERRATUM, EXACT, GIVEN, ROUNDED, Printed, load_articles
from transom.lab.worked_examples import Result, count_verdicts

LAST_DIGITS = "Only the last digits of this step differ. "
"""Beginning of the explanation of an erratum whose own step is right but for a few units of the last place."""

MAX_SHOWN = 40
"""Longest value that a table on a terminal shows in full."""


def format_printed(printed: Printed) -> str:
    """Format a printed value, the rows of a matrix separated by semicolons.

    >>> format_printed([["0.10", "1.30"], ["1.04", "0.94"]])
    '0.10, 1.30; 1.04, 0.94'
    """
    if isinstance(printed, str):
        return printed
    return ("; " if isinstance(printed[0], list) else ", ").join(format_printed(each) for each in printed)


def format_value(value: Tensor, printed: Sequence[Any], more: int = 0) -> str:
    """Format a value with as many digits as the printed one, and ``more``; whole numbers have no further digits.

    >>> import torch
    >>> format_value(torch.tensor([0.84147, 2.0]), ["0.84", "2"], more=1)
    '0.841, 2'
    """
    if isinstance(printed, str):
        # Rounded first, so that a number halfway between two decimals has the same digits on every processor.
        number, places = round(float(value), 12), len(printed.partition(".")[2])
        text = f"{number:.0f}" if not places and abs(number - round(number)) < 1e-9 else f"{number:.{places + more}f}"
        return text if float(text) else text.removeprefix("-")
    parts = (format_value(each, below, more) for each, below in zip(value, printed, strict=True))
    return ("; " if isinstance(printed[0], list) else ", ").join(parts)


def format_place(result: Result) -> str:
    """Return article and line of an example, such as ``002:308``."""
    return f"{result.example.article}:{result.example.lines[0]}"


def explain(result: Result) -> str:
    """Explain an erratum in a sentence or more: what is wrong in its own step, or which wrong value it follows from."""
    example = result.example
    if result.own:
        return " ".join(part for part in (example.why, example.note) if part)
    return " ".join(part for part in (f"Follows from {result.first}.", example.note) if part)


def to_record(result: Result) -> dict[str, Any]:
    """Return a result as JSON-serializable data."""
    example = result.example
    record = example.model_dump(exclude_defaults=True) | {
        "article": example.article,
        "kind": example.kind,
        "verdict": result.verdict,
        "recomputed": result.right.tolist(),
        "from_printed_inputs": result.from_inputs.tolist(),
    }
    if result.verdict == ERRATUM:
        record |= {"first_wrong": result.first, "own_step": result.own, "explanation": explain(result)}
    return record


def to_records(results: Sequence[Result]) -> dict[str, Any]:
    """Return all results, their counts and the conceptual errata of their articles as JSON-serializable data."""
    articles = {result.example.article for result in results}
    return {
        "counts": count_verdicts(results),
        "examples": [to_record(result) for result in results],
        "conceptual": [
            {"article": article.number, **each.model_dump()}
            for article in load_articles()
            if article.number in articles
            for each in article.conceptual
        ],
    }


def summary_lines(results: Iterable[Result]) -> Iterator[str]:
    """Yield lines on the number of examples with each verdict."""
    found = list(results)
    counts = count_verdicts(found)
    n_own = sum(result.own for result in found)
    yield f"{counts[EXACT]:4}  {EXACT}"
    yield f"{counts[ROUNDED]:4}  {ROUNDED}"
    yield f"{counts[ERRATUM]:4}  {ERRATUM}: {n_own} wrong steps, and {counts[ERRATUM] - n_own} values that follow from them"
    yield f"{counts[GIVEN]:4}  {GIVEN}: inputs that the articles assume"


def table_rows(results: Iterable[Result]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of examples, the head first."""
    yield ("place", "example", "quantity", "printed", "recomputed", "verdict")
    for result in results:
        example = result.example
        right = "" if result.verdict == GIVEN else format_value(result.right, example.printed, more=1)
        yield (
            format_place(result),
            example.id,
            example.quantity,
            _shorten(format_printed(example.printed)),
            _shorten(right),
            result.verdict,
        )


def errata_lines(results: Iterable[Result]) -> Iterator[str]:
    """Yield the errata whose own step is wrong, each explained; then those that follow, by id."""
    found = [result for result in results if result.verdict == ERRATUM]
    for result in found:
        if result.own:
            example = result.example
            yield f"{format_place(result)}  {example.quantity} ({example.id})"
            yield f"    printed  {format_printed(example.printed)}"
            if result.inherits:
                yield f"    step     {format_value(result.from_inputs, example.printed, more=1)} from the numbers printed before"
            yield f"    right    {format_value(result.right, example.printed, more=1)}"
            yield f"    {LAST_DIGITS if result.only_last_digits else ''}{explain(result)}"
    following = [result for result in found if not result.own]
    for first in dict.fromkeys(result.first for result in following):
        yield f"from {first} follow: {', '.join(result.example.id for result in following if result.first == first)}"


def conceptual_lines(articles: set[str]) -> Iterator[str]:
    """Yield the conceptual errata of articles."""
    for article in load_articles():
        if article.number in articles:
            for each in article.conceptual:
                yield f"{article.number}:{each.lines[0]}  {each.problem} Right: {each.right}"


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 4]} ..."
