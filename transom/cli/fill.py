"""``transom fill``: predict the masked words of a text."""

from pathlib import Path
from typing import Annotated

import typer

from transom.cli.answers import Json, answer, note_longer
from transom.cli.imports import lasting_imports
from transom.cli.options import FillTooLong, Precision, Run
from transom.errors import ConfigError

EXAMPLES = """
transom fill runs/masked "The [MASK] sat on the mat."
transom fill runs/masked "def [MASK](self):" --top 10
transom fill runs/masked --input texts.txt --json
"""

app = typer.Typer(add_completion=False)


@app.command()
def fill(
    run: Run,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A text with [MASK] in place of each missing word.")] = None,
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Texts, one per line (.gz too).")] = None,
    top: Annotated[int, typer.Option("--top", min=1, metavar="N", help="Number of predictions per mask.")] = 5,
    too_long: FillTooLong = "window",
    precision: Precision = "auto",
    as_json: Json = False,
) -> None:
    """Print the most probable tokens and their probabilities per [MASK].

    A mask stands for one token of the tokenizer, a word or a subword. Masks are predicted independently.
    """
    if (text is None) == (input_file is None):
        raise ConfigError("expected a TEXT or --input, found both or neither; give one of them")
    with lasting_imports():
        from transom.data.text.text import check_text, read_lines
        from transom.decoding.predictors.filler import Filler
        from transom.tasks.load import load_as
        from transom.tasks.progress import counting

    texts = [check_text(text, "TEXT")] if text is not None else read_lines(input_file or Path())
    filler = load_as(Filler, run, precision)
    with counting("texts", quiet=as_json or input_file is None) as tell:
        found = filler.filled(texts, top, too_long, tell)
    records = [
        {"text": text, "gaps": [[each.to_json() for each in gap] for gap in filled.gaps], "n_left_out": filled.n_left_out}
        for text, filled in zip(texts, found, strict=True)
    ]
    lines = []
    for each, filled in zip(texts, found, strict=True):
        lines += [each] * (len(texts) > 1)
        lines += str(filled).split("\n")
    answer(records, as_json, lines)
    if not as_json:
        n_left_out = [filled.n_left_out for filled in found]
        most = filler.model.config.max_seq_len - 1
        note_longer(sum(n > 0 for n in n_left_out), len(texts), "texts", most, "read in a window around each mask", sum(n_left_out))
