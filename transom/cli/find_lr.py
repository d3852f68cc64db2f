"""``transom find-lr``: a learning rate for a recipe, from a range test."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import RecipeArgument, SetOption, WithDataOptions
from transom.cli.output import JsonOption, align_columns, print_note, print_result
from transom.cli.pictures import check_numbers_path, check_picture_path, save_picture
from transom.config.arguments import Files, file_overrides

if TYPE_CHECKING:
    from transom.training.range_test import RangeTest

EXAMPLES = """
transom find-lr shakespeare-char
transom find-lr translation --source train.en --target train.de --out rates.svg
transom find-lr my.toml --from 1e-5 --to 0.1 --steps 200 --set training.optimizer=muon
transom find-lr my.toml --json
"""

MAX_ROWS = 15
"""Rows of the table, besides those of the steepest descent and of the lowest loss."""

app = typer.Typer(add_completion=False)


@app.command()
@WithDataOptions
def find_lr(
    recipe: RecipeArgument,
    files: Files,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Draw the loss: .svg, .png, .html or .csv. The numbers are written to a .csv file beside it."
        ),
    ] = None,
    start: Annotated[float, typer.Option("--from", metavar="RATE", help="Learning rate of the first step.")] = 1e-7,
    end: Annotated[float, typer.Option("--to", metavar="RATE", help="Learning rate of the last step.")] = 1.0,
    steps: Annotated[int, typer.Option("--steps", min=10, max=100_000, metavar="N", help="Number of steps, and of rates.")] = 100,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the loss at the learning rates of a range test (Smith 2017), and the rate that it suggests. Nothing of the training is kept.

    The recipe's fresh model is trained on its data, with its optimizer, batch, precision and clipping, at a rate that grows by the same
    factor per step; warmup and schedule are not applied. Rates that are far too small leave the loss where it is, good ones let it fall,
    and too large ones raise it. The test stops early once the smoothed loss is four times its minimum, or not finite.

    Suggested is the rate of the steepest descent, at most a tenth of the rate at which the smoothed loss is lowest. It is a start, not an
    optimum: transom sweep compares rates by their validation loss. The same seed gives the same numbers.
    """
    check_picture_path(out, [Path(recipe)])
    with gc_frozen_imports():
        from transom.config.model_overrides import load_training_recipe
        from transom.inspection.plots.range_test import COLUMNS, range_test_picture
        from transom.tasks.find_lr import fresh_model_steps
        from transom.tasks.progress import show_progress
        from transom.training.range_test import learning_rates, run_range_test

    check_numbers_path(out, COLUMNS)
    rates = learning_rates(start, end, steps)
    all_overrides = [*file_overrides(recipe, overrides or [], files), *(overrides or [])]
    loaded, base, user_overrides = load_training_recipe(recipe, all_overrides)
    show_status = (lambda _: None) if as_json else (lambda what: print_note(f"{what} ..."))
    with (
        fresh_model_steps(loaded, base, user_overrides, show_status) as (train_step, notes),
        show_progress("steps", quiet=as_json) as notify,
    ):
        found = run_range_test(train_step, rates, notify)
    if out is not None:
        save_picture(range_test_picture(found, recipe), out)
    value = {"recipe": recipe, **found.to_json(), "notes": notes}
    print_result(value, as_json, [*_table(found), "", *_explain(found, len(rates)), *notes, f"--set {found.setting}"])


def _table(found: "RangeTest") -> list[str]:
    """Format some of the steps, among them those of the steepest descent and of the lowest loss."""
    last = len(found.points) - 1
    shown = {round(row * last / (MAX_ROWS - 1)) for row in range(MAX_ROWS)} | {found.steepest, found.lowest}
    marks = {found.steepest: "steepest descent", found.lowest: "lowest"}
    rows = [["learning rate", "smoothed loss", ""]]
    rows += [[f"{found.points[i].learning_rate:.2e}", f"{found.points[i].smoothed:.4f}", marks.get(i, "")] for i in sorted(shown)]
    return [f"{figures}  {mark}".rstrip() for figures, (*_, mark) in zip(align_columns(row[:2] for row in rows), rows, strict=True)]


def _explain(found: "RangeTest", n_rates: int) -> list[str]:
    """Explain the end of the test, and which of two rates is suggested."""
    steepest, lowest = found.points[found.steepest].learning_rate, found.points[found.lowest].learning_rate
    ends = {
        "all rates": f"all {n_rates:,} learning rates were tried",
        "grown": f"stopped after {len(found.points):,} of {n_rates:,} steps: the smoothed loss exceeded four times its minimum",
        "not finite": f"stopped after {len(found.points):,} of {n_rates:,} steps: the loss was not finite",
    }
    lines = [ends[found.ended]]
    if found.lowest == n_rates - 1:
        lines.append("the loss still fell at the end of the range: raise --to")
    if found.is_capped:
        chosen = f"a tenth of the rate of the lowest loss, {lowest:.2g}, which is below the rate of the steepest descent, {steepest:.2g}"
    else:
        chosen = f"the rate of the steepest descent, which is at most a tenth of the rate of the lowest loss, {lowest:.2g}"
    return [*lines, f"suggested learning rate: {found.suggestion:g}, {chosen}"]
