"""``transom contexts``: how alike the vectors of one word are in different texts, after each block."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import RunArgument, option_errors
from transom.cli.output import JsonOption, align_columns, print_result
from transom.errors import ConfigError

if TYPE_CHECKING:
    from transom.inspection.lenses.contexts import ContextualSimilarity

EXAMPLES = """
transom contexts runs/gpt bank "She sat on the river bank." "She put money in the bank."
transom contexts runs/en-de bank "She put money in the bank by the river bank."
transom contexts runs/en-de Bank "He sat on the bench." "He went to the bank." --side target
transom contexts runs/gpt bank --input texts.txt --json
"""

MAX_PAIRS = 6
"""Number of pairs of occurrences that are printed in columns of their own."""

app = typer.Typer(add_completion=False)


@app.command()
def contexts(
    run: RunArgument,
    word: Annotated[str, typer.Argument(metavar="WORD", help="Word that all texts contain.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts that contain the word.", show_default=False)] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="File of texts, one per line (may be gzipped).")
    ] = None,
    side: Annotated[
        Literal["source", "target"], typer.Option("--side", help="Read a translator's encoder, or with target its decoder.")
    ] = "source",
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="TEXT", help="Translation of a text, for --side target. Repeatable. Default: the model's own."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the cosine similarity of a word's vectors between its occurrences: static, and in the residual stream after each block.

    The static embedding of a word is the same in all texts: 1. Each block adds context, so that the similarity falls where meanings differ.
    1-2 compares the first two occurrences. In a language model the vector of a word depends only on the text before it. Of a translator the
    encoder is read; with --side target the decoder, where WORD is a word of the translations and its vectors also depend on the source.

    In deep blocks the vectors of all tokens may be alike (anisotropy). "other tokens" is the mean similarity of two different tokens of the
    texts, and "adjusted" is the mean of all pairs of occurrences minus this baseline (Ethayarajh 2019). Long texts make the baseline
    steadier. A word of several tokens is the mean of their vectors.
    """
    if bool(texts) == (input_file is not None):
        raise ConfigError("expected TEXT or --input, found both or neither; give one of them")
    with gc_frozen_imports():
        from transom.data.text.text_io import check_text, read_lines
        from transom.inspection.lenses.contexts import contextual_similarity
        from transom.tasks.load import load

    given = read_lines(input_file) if input_file is not None else [check_text(text, "TEXT") for text in texts or ()]
    with option_errors(side="--side", targets="--target"):
        found = contextual_similarity(load(run, "fp32"), given, word, side, target)
    print_result(_record(found), as_json, _lines(found))


def _record(found: "ContextualSimilarity") -> dict[str, Any]:
    """Return the result as JSON-serializable data."""
    measures = {name: getattr(found, name).tolist() for name in ("self_similarity", "anisotropy", "adjusted")}
    rows = [
        {"layer": layer, "cosines": found.cosines[i].tolist(), **{name: values[i] for name, values in measures.items()}}
        for i, layer in enumerate(found.layers)
    ]
    return {"word": found.word, "texts": found.texts, "occurrences": [each._asdict() for each in found.occurrences], "layers": rows}


def _lines(found: "ContextualSimilarity") -> Iterator[str]:
    """Format the occurrences, and a table with one row per layer."""
    for number, each in enumerate(found.occurrences, 1):
        tokens = f"token {each.start}" if len(each.tokens) == 1 else f"mean of tokens {each.start} to {each.start + len(each.tokens) - 1}"
        text = found.texts[each.text]
        excerpt = text if len(text) <= 60 else f"{text[:57]}..."
        yield f"{number}: {tokens} ({' '.join(each.symbols)}) of text {each.text + 1}: {excerpt}"
    yield ""
    pairs = list(combinations(range(len(found.occurrences)), 2))
    shown = pairs if len(pairs) <= MAX_PAIRS else []
    head = ["layer", *(f"{i + 1}-{j + 1}" for i, j in shown), "mean", "other tokens", "adjusted"]
    means = zip(found.self_similarity.tolist(), found.anisotropy.tolist(), found.adjusted.tolist(), strict=True)
    rows = [
        [layer, *(f"{found.cosines[row, i, j]:.3f}" for i, j in shown), *(f"{value:.3f}" for value in values)]
        for row, (layer, values) in enumerate(zip(found.layers, means, strict=True))
    ]
    yield from align_columns([head, *rows])
    if not shown:
        yield f"mean: of all {len(pairs):,} pairs of occurrences, which --json lists"
