"""``transom fill``: predict the masked words of a text."""

from pathlib import Path
from typing import Annotated

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import FillTooLong, PrecisionOption, RunArgument
from transom.cli.output import JsonOption, note_too_long, print_result
from transom.errors import ConfigError

EXAMPLES = """
transom fill runs/masked "The [MASK] sat on the mat."
transom fill runs/masked "def [MASK](self):" --top-k 10
transom fill runs/masked --input texts.txt --json
"""

app = typer.Typer(add_completion=False)


@app.command()
def fill(
    run: RunArgument,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="A text with [MASK] in place of each missing word.")] = None,
    input_file: Annotated[Path | None, typer.Option("--input", metavar="FILE", help="Texts, one per line (.gz too).")] = None,
    top: Annotated[int, typer.Option("--top-k", min=1, metavar="N", help="Number of predictions per mask.")] = 5,
    too_long: FillTooLong = "window",
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Print the most probable tokens and their probabilities per [MASK].

    A mask stands for one token of the tokenizer, a word or a subword. Masks are predicted independently.
    """
    if (text is None) == (input_file is None):
        raise ConfigError("expected a TEXT or --input, found both or neither; give one of them")
    with gc_frozen_imports():
        from transom.data.text.text_io import check_text, read_lines
        from transom.decoding.predictors.fill_mask import MaskFiller
        from transom.tasks.load import load
        from transom.tasks.progress import show_progress

    texts = [check_text(text, "TEXT")] if text is not None else read_lines(input_file or Path())
    mask_filler = load(run, precision, kind=MaskFiller)
    with show_progress("texts", quiet=as_json or input_file is None) as notify:
        found = mask_filler.fill_with_details(texts, top, too_long, notify)
    records = [
        {"text": text, "masks": [[each.to_json() for each in gap] for gap in filled.masks], "n_dropped_tokens": filled.n_dropped_tokens}
        for text, filled in zip(texts, found, strict=True)
    ]
    lines = []
    for each, filled in zip(texts, found, strict=True):
        lines += [each] * (len(texts) > 1)
        lines += str(filled).split("\n")
    print_result(records, as_json, lines)
    if not as_json:
        n_dropped_tokens = [filled.n_dropped_tokens for filled in found]
        max_tokens = mask_filler.model.config.max_seq_len - 1
        note_too_long(
            sum(n > 0 for n in n_dropped_tokens),
            len(texts),
            "texts",
            max_tokens,
            "read in a window around each mask",
            sum(n_dropped_tokens),
        )
