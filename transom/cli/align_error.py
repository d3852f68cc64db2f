"""``transom align-error``: alignment error rate of a translator's cross-attention on phrasebook pairs."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import PrecisionOption, RunArgument
from transom.cli.output import JsonOption, align_columns, print_result

if TYPE_CHECKING:
    from transom.inspection.lenses.alignment_error import AlignmentError

EXAMPLES = """
transom align-error runs/phrasebook
transom align-error runs/phrasebook --pairs 1000 --json
transom align-error runs/both --to en --part valid
"""

app = typer.Typer(add_completion=False)


@app.command()
def align_error(
    run: RunArgument,
    pairs: Annotated[int, typer.Option("--pairs", min=1, metavar="N", help="Number of sentence pairs.")] = 200,
    part: Annotated[
        Literal["valid", "test"], typer.Option("--part", help="Pairs of the validation or test split; test has unseen combinations.")
    ] = "test",
    to: Annotated[str | None, typer.Option("--to", metavar="TAG", help="Target language of a multilingual model.")] = None,
    precision: PrecisionOption = "fp32",
    as_json: JsonOption = False,
) -> None:
    """Compare the words to which cross-attention heads attend with the word links that the phrasebook's grammar records.

    Each target word is linked with the source word to which it attends most while the model predicts it. With found links A, sure links S,
    and sure or possible links P, precision is |A and P| / |A|, recall |A and S| / |S|, and the alignment error rate AER is
    1 - (|A and S| + |A and P|) / (|A| + |S|): 0 is perfect (Och and Ney 2003). A word and its translation are a sure link; function words
    without a counterpart and set phrases are possible links. The diagonal, which links words at the same relative position, is a baseline.
    """
    with gc_frozen_imports():
        from transom.checkpoints.run_files import RECIPE
        from transom.checkpoints.run_folder import RunFolder
        from transom.config.recipe import load_recipe
        from transom.decoding.predictors.translator import Translator
        from transom.inspection.lenses.alignment_error import alignment_errors, linked_pairs
        from transom.tasks.load import load
        from transom.tasks.progress import show_progress

    translator = load(run, precision, kind=Translator)
    known = linked_pairs(load_recipe(RunFolder.open(run).path / RECIPE)[0].data, pairs, part, to)
    with show_progress("pairs", quiet=as_json) as notify:
        found = alignment_errors(translator.model, translator.tokenizers, known, to, notify)
    record = {"pairs": len(known), "part": part, "alignments": [each._asdict() for each in found]}
    print_result(record, as_json, _lines(found))


def _lines(found: "list[AlignmentError]") -> list[str]:
    """Format one line per head and mean, the best ones marked."""
    best = min(each.aer for each in found)
    rows = [("alignment", "AER", "precision", "recall", "links", "")]
    for each in found:
        name = each.address or "mean of all layers and heads"
        name += f" head {each.head}" if each.head is not None else ", mean of heads" if each.address.endswith("cross") else ""
        numbers = (f"{each.aer:.3f}", f"{each.precision:.3f}", f"{each.recall:.3f}", f"{each.n_links:,}")
        rows.append((name, *numbers, "best" if each.aer == best else ""))
    return align_columns(rows)
