"""``transom compare-components``: train a recipe with alternative components from the same seeds."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.options import RecipeArgument, SetOption, WithDataOptions
from transom.cli.output import JsonOption, align_columns, print_result
from transom.config.arguments import Files, file_overrides
from transom.tasks.signals import defer_signals

EXAMPLES = """
transom compare-components phrasebook --with model.norm=rmsnorm --with model.feed_forward=swiglu
transom compare-components text-bpe --text notes --with model.position=rotary --steps 1000
transom compare-components phrasebook --with my_ff.py:Mine --seeds 5 --out runs/mine-or-not
"""

app = typer.Typer(add_completion=False)


@app.command()
@WithDataOptions
def compare_components(
    recipe: RecipeArgument,
    files: Files,
    wanted: Annotated[
        list[str],
        typer.Option(
            "--with",
            metavar="FIELD=VALUE|FILE.py:CLASS",
            help="Component of one variant: a value of a recipe field, or a class in a Python file, which is executed. Repeatable.",
        ),
    ],
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Number of optimizer steps of each run.")] = 300,
    seeds: Annotated[
        int,
        typer.Option("--seeds", min=1, max=1000, metavar="N", help="Train the recipe and each variant once with each seed from 1 to N."),
    ] = 3,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for the runs. Default: runs/compare-NAME.")] = None,
    overrides: SetOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the comparison in --out, or start it if there is none.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Print the validation loss, training speed and number of parameters of the recipe and of each variant.

    Runs with the same seed train on the same data in the same order. The validation loss is measured after the last step. "difference" is
    the loss of a variant minus the loss of the unchanged recipe with the same seed, averaged over the seeds. "std" is the sample standard
    deviation over the seeds.
    """
    with defer_signals():
        from transom.tasks.compare_components import LOSS_CHART, Comparison, build_variants
        from transom.tasks.progress import show_progress

    all_overrides = [*file_overrides(recipe, overrides or [], files), *(overrides or [])]
    folder = out or Path("runs") / f"compare-{Path(recipe).stem}"
    comparison = Comparison(recipe, all_overrides, build_variants(recipe, all_overrides, wanted), steps, seeds, folder)
    with show_progress("steps", quiet=as_json) as notify:
        stopped = comparison.train(resume, notify)
    if stopped is not None:
        print_result(stopped.to_json(), as_json, [f"stopped; saved in {folder}; repeat the command with --resume to continue"])
        return stopped.exit_code
    found = comparison.collect_results()
    rows = [each.to_json(found[0]) for each in found]
    value = {"recipe": recipe, "steps": steps, "seeds": seeds, "unit": comparison.unit, "folder": str(folder), "components": rows}
    print_result(
        value, as_json, [*_format_lines(rows, comparison.unit), f"loss in nats after {steps:,} steps; curves in {folder / LOSS_CHART}"]
    )
    return 0


def _format_lines(rows: Sequence[Mapping[str, Any]], unit: str) -> list[str]:
    cells = [["component", "parameters", "loss", "std", "difference", "std", f"{unit}/s", "std"]]
    for row in rows:
        loss, difference, speed = row["loss"], row["difference"], row["speed"]
        differs = ["", ""] if row is rows[0] else [f"{difference['mean']:+.4f}", _spread(difference, ".4f")]
        figures = [f"{loss['mean']:.4f}", _spread(loss, ".4f"), *differs, f"{speed['mean']:,.0f}", _spread(speed, ",.0f")]
        cells.append([row["name"], f"{row['parameters']:,}", *figures])
    return align_columns(cells)


def _spread(figures: Mapping[str, float], form: str) -> str:
    """Format the standard deviation; empty if there is one seed only."""
    return "" if math.isnan(figures["std"]) else format(figures["std"], form)
