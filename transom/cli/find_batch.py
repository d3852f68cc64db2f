"""``transom find-batch``: the largest batch that fits into memory."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import RecipeArgument, SetOption
from transom.cli.output import JsonOption, print_note, print_result

if TYPE_CHECKING:
    from transom.training.find_batch import FoundBatch

EXAMPLES = """
transom find-batch python-stdlib --memory 2GiB
transom find-batch translation --memory 4GiB --vocab-size 10000 --set model.d_model=512
transom find-batch my.toml --json
"""

app = typer.Typer(add_completion=False)


@app.command()
def find_batch(
    recipe: RecipeArgument,
    overrides: SetOption = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="Memory that training may have, such as 4GiB. Default: all that this process may."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option("--context", min=1, help="Tokens per sequence. Default: model.max_seq_len; 64 per side of a pair of texts."),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", min=1, help="Symbols of each vocabulary. Default: tokenizer.vocab_size of the recipe.")
    ] = None,
    precision: Annotated[
        Literal["bf16", "fp32"] | None, typer.Option("--precision", help="Data type of matrix products. Default: this machine's choice.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Find the largest micro-batch of a recipe that fits, and the gradient accumulation with which the whole batch stays the same.

    The micro-batch is predicted as by transom plan. A child process, which may have no more than this memory, then takes a few steps with
    random weights on full rows. The training data, which are not read, need memory of their own.
    """
    with gc_frozen_imports():
        from transom.cli.plan import load_planned, parse_bytes
        from transom.training.find_batch import find_batch
        from transom.training.plan_run import PlanOptions

    limit = parse_bytes(memory, "--memory")
    config, training, layout = load_planned(recipe, overrides or (), vocab_size)
    options = replace(PlanOptions(), context=context, precision=precision, batch_parts=layout.n_batch_parts)
    found = find_batch(config, training, limit, options, notify=(lambda _: None) if as_json else print_note)
    print_result(found.to_json(), as_json, found_lines(found))


def found_lines(found: "FoundBatch") -> list[str]:
    """Return the lines of the result: what fits, what the trial used, and the two settings."""
    from transom.cli.plan_table import format_bytes

    per_row = "" if found.unit == "image" else f" of {found.length:,} tokens"
    rows = f"{found.rows:,} {found.unit}{'' if found.rows == 1 else 's'}{per_row}"
    _, last = found.trials[-1]
    python = f"{format_bytes(last.before)} are reserved by Python and PyTorch"
    return [
        f"largest micro-batch that fits into {format_bytes(found.limit)}: {rows} per forward pass, {found.batch:,} per step",
        f"predicted: {format_bytes(found.predicted)}; a trial used {format_bytes(last.resident)}, and {python}",
        "the training data are not included; a step for which memory runs out is repeated with smaller micro-batches",
        *(f"--set {each}" for each in found.settings),
    ]
