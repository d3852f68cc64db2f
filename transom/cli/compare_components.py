"""``transom compare-components``: train a recipe with alternative components from the same seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from transom.cli.answers import Json, answer, table
from transom.cli.options import RecipeName, Set, WithDataOptions
from transom.config.arguments import Files, file_overrides
from transom.tasks.imports import signals_held

EXAMPLES = """
transom compare-components copy --with model.norm=rmsnorm --with model.feed_forward=swiglu
transom compare-components text-bpe --text notes --with model.position=rotary --steps 1000
transom compare-components copy --with my_ff.py:Mine --seeds 5 --out runs/mine-or-not
"""

app = typer.Typer(add_completion=False)


@app.command()
@WithDataOptions
def compare_components(
    recipe: RecipeName,
    files: Files,
    wanted: Annotated[
        list[str],
        typer.Option(
            "--with", metavar="FIELD=VALUE|FILE.py:CLASS", help="A component that replaces the recipe's. FILE.py is executed. Repeatable."
        ),
    ],
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Optimizer steps per run.")] = 300,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Train each variant with seeds 1 to N.")] = 3,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for the runs. Default: runs/compare-NAME.")] = None,
    overrides: Set = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the comparison in --out, if there is one.")] = False,
    as_json: Json = False,
) -> int:
    """Print validation loss, speed and parameters of the recipe and each variant, trained on the same data in the same order.

    Differences from the unchanged recipe are computed per seed. The loss is measured after the last step. std is the sample standard
    deviation over the seeds.
    """
    with signals_held():
        from transom.tasks.compare_components import CURVE, Comparison, variants_of
        from transom.tasks.progress import counting

    sets = [*file_overrides(recipe, overrides or [], files), *(overrides or [])]
    folder = out or Path("runs") / f"compare-{Path(recipe).stem}"
    comparison = Comparison(recipe, sets, variants_of(recipe, sets, wanted), steps, seeds, folder)
    with counting("steps", quiet=as_json) as tell:
        stopped = comparison.train(resume, tell)
    if stopped is not None:
        answer(stopped.to_json(), as_json, [f"stopped; saved in {folder}; repeat the command with --resume to continue"])
        return stopped.exit_code
    found = comparison.measured()
    rows = [each.to_json(found[0]) for each in found]
    value = {"recipe": recipe, "steps": steps, "seeds": seeds, "counted": comparison.counted, "folder": str(folder), "components": rows}
    answer(value, as_json, [*_lines(rows, comparison.counted), f"loss in nats after {steps:,} steps; curves in {folder / CURVE}"])
    return 0


def _lines(rows: Sequence[Mapping[str, Any]], counted: str) -> list[str]:
    cells = [["component", "parameters", "loss", "spread", "difference", "spread", f"{counted}/s", "spread"]]
    for row in rows:
        loss, difference, speed = row["loss"], row["difference"], row["speed"]
        differs = ["", ""] if row is rows[0] else [f"{difference['mean']:+.4f}", f"{difference['spread']:.4f}"]
        figures = [f"{loss['mean']:.4f}", f"{loss['spread']:.4f}", *differs, f"{speed['mean']:,.0f}", f"{speed['spread']:,.0f}"]
        cells.append([row["name"], f"{row['parameters']:,}", *figures])
    return table(cells)
