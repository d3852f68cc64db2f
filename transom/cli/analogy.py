"""``transom analogy``: nearest neighbors of a word's embedding, and analogies such as king - man + woman."""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import RunArgument
from transom.cli.output import JsonOption, align_columns, print_result
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.inspection.lenses.embeddings import Analogy, Neighbor

EXAMPLES = """
transom analogy runs/gpt king
transom analogy runs/gpt king - man + woman
transom analogy runs/gpt "king - man + woman" --method mul --top 5
transom analogy runs/gpt king --output-embedding
transom analogy runs/en-de dog --side source
"""

VISIBLE = {code: 0x2400 + code for code in range(32)}
"""Visible symbols of control characters, line breaks and tabs included, which are tokens of byte-pair encoding."""

app = typer.Typer(add_completion=False)


@app.command()
def analogy(
    run: RunArgument,
    words: Annotated[list[str], typer.Argument(metavar="WORD [- WORD] [+ WORD]...", help="A word, or words with + and - between them.")],
    top: Annotated[int, typer.Option("--top", min=1, max=10_000, help="Number of tokens to print.")] = 10,
    method: Annotated[
        Literal["add", "mul"],
        typer.Option("--method", help="add: cosine to the sum of unit vectors (3CosAdd). mul: quotient of cosines (3CosMul)."),
    ] = "add",
    side: Annotated[
        Literal["source", "target"] | None, typer.Option("--side", help="Embedding of a translator that has one per language.")
    ] = None,
    output: Annotated[
        bool, typer.Option("--output-embedding", help="Search the matrix that gives the logits instead of the input embedding.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print the tokens whose embeddings are nearest, with the query words and without them.

    Articles usually leave the query words out, which hides that the nearest is often one of them. A score of 1 means the same direction, 0
    unrelated directions; 3CosMul (Levy and Goldberg 2014) is a quotient, which may exceed 1. The embedding is the same in every context;
    transom contexts compares vectors in context. Small models trained on little text have few analogies.

    The tokens of the vocabulary are ranked, which may be parts of words. A word of several tokens is the mean of their vectors.
    """
    positive, negative = parse_analogy(words)
    with gc_frozen_imports():
        from transom.inspection.lenses.embeddings import analogy as find
        from transom.tasks.load import load

    found = find(load(run, "fp32"), positive, negative, n=top, method=method, side=side, output=output)
    print_result(_record(found, method), as_json, _lines(found, method, " ".join(words)))


def parse_analogy(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words with + and - between them into those that are added and those that are subtracted.

    >>> parse_analogy(["king", "-", "man", "+", "woman"]), parse_analogy(["New York - USA + Japan"])
    ((['king', 'woman'], ['man']), (['New York', 'Japan'], ['USA']))

    Raises:
        ConfigError: words and signs do not alternate.
    """
    parts = [part for word in words for part in re.split(r"\s+([+-])\s+", word.strip())]
    if len(parts) % 2 == 0 or not all((part in ("+", "-")) == bool(i % 2) and part for i, part in enumerate(parts)):
        raise ConfigError(f"expected words with + or - between them, such as king - man + woman, found {' '.join(words)!r:.80}")
    signs = ["+", *parts[1::2]]
    by_sign = {sign: [word for each, word in zip(signs, parts[::2], strict=True) if each == sign] for sign in "+-"}
    return by_sign["+"], by_sign["-"]


def _record(found: "Analogy", method: str) -> dict[str, Any]:
    """Return the result as JSON-serializable data."""
    return {
        "embedding": found.table.path,
        "tied": found.table.tied,
        "method": method,
        **{name: [{"word": each.word, "tokens": each.symbols} for each in getattr(found, name)] for name in ("positive", "negative")},
        **{name: [each._asdict() for each in getattr(found, name)] for name in ("included", "excluded")},
    }


def _lines(found: "Analogy", method: str, query: str) -> Iterator[str]:
    """Format both lists side by side."""
    name = f"{found.table.path}{', input and output embedding in one' if found.table.tied else ''}"
    measure = "cosine similarity" if len(found.positive) + len(found.negative) == 1 else {"add": "3CosAdd", "mul": "3CosMul"}[method]
    yield f"{query} in {name}: {measure}"
    for each in (*found.positive, *found.negative):
        if len(each.tokens) > 1:
            yield f"{each.word} is the mean of {len(each.tokens)} tokens: {' '.join(each.symbols)}"
    yield ""
    pairs = enumerate(zip_longest(found.included, found.excluded), 1)
    rows = [[f"{i}", *_cells(left), *_cells(right)] for i, (left, right) in pairs]
    yield from align_columns([["", "with query words", "score", "without", "score"], *_align_left(rows)], n_left=2)
    if any(each.is_query for each in found.included):
        yield "* query word"


def _align_left(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Pad the symbols of the second list, since columns after the first two are right-aligned."""
    width = max([len("without"), *(len(row[3]) for row in rows)])
    return [[*row[:3], row[3].ljust(width), row[4]] for row in rows]


def _cells(each: "Neighbor | None") -> tuple[str, str]:
    """Return symbol and score of a token; empty where a list has ended. A symbol may be a line break or another control character."""
    from transom.inspection.pages.markup import escape_control_characters

    if each is None:
        return "", ""
    symbol = escape_control_characters(each.symbol.translate(VISIBLE))
    return f"{symbol}{' *' if each.is_query else ''}", f"{each.score:.3f}"
