"""``transom fill``: predict the masked words of a text."""

from typing import Annotated, Any

import typer

from transom.cli.edits import EditOption, edits_in_force
from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.inputs import Answer, InputOptions, answer_inputs, read_inputs
from transom.cli.options import FillTooLong, InferencePrecisionOption, RunArgument, expand_options
from transom.cli.output import JsonAnswersOption, note_too_long

EXAMPLES = """
transom fill runs/masked "The [MASK] sat on the mat."
transom fill runs/masked "def [MASK](self):" --top-k 10
transom fill runs/masked --input texts.txt --json
"""

app = typer.Typer(add_completion=False)


@app.command()
@expand_options
def fill(
    run: RunArgument,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT...", help="Texts with [MASK] in place of each word to predict.")
    ] = None,
    *,
    sources: InputOptions,
    top: Annotated[int, typer.Option("--top-k", min=1, metavar="N", help="Number of predicted tokens per [MASK].")] = 5,
    too_long: FillTooLong = "window",
    edit: EditOption = None,
    precision: InferencePrecisionOption = "auto",
    as_json: JsonAnswersOption = False,
) -> None:
    """Print the most probable tokens for each [MASK], with their probabilities.

    Each [MASK] stands for one token of the tokenizer, which is a word or a subword. If a text contains several, each is predicted
    independently.
    """
    with gc_frozen_imports():
        from transom.data.tokenizer.special_tokens import MASK
        from transom.decoding.predictors.fill_mask import MaskFiller
        from transom.tasks.load import load

    mask_filler, n_dropped = load(run, precision, kind=MaskFiller), list[int]()

    def answer(texts: list[str], notify: Any) -> list[Answer]:
        found = mask_filler.fill_with_details(texts, top, too_long, notify)
        n_dropped.extend(filled.n_dropped_tokens for filled in found)
        return [
            Answer(
                {
                    "text": text,
                    "masks": [[each.to_json() for each in gap] for gap in filled.masks],
                    "n_dropped_tokens": filled.n_dropped_tokens,
                },
                [*([text] * (len(texts) > 1)), *str(filled).split("\n")],
            )
            for text, filled in zip(texts, found, strict=True)
        ]

    inputs = read_inputs(texts, sources, "TEXT", "texts with [MASK]")
    with edits_in_force(mask_filler, edit, precision):
        answered = answer_inputs(inputs, answer, run=run, noun="texts", as_json=as_json, readable=lambda text: text.replace(MASK, " "))
    if not as_json:
        max_tokens, treatment = mask_filler.max_tokens, "read in a window around each mask"
        note_too_long(sum(n > 0 for n in n_dropped), len(answered), "texts", max_tokens, treatment, sum(n_dropped))
