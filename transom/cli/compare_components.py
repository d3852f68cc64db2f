"""``transom compare-components``: one recipe with several components, trained from the same seeds."""

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
            "--with", metavar="FIELD=VALUE|FILE.py:CLASS", help="A component in the place of the recipe's; may be repeated. FILE.py is run."
        ),
    ],
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Steps of each run.")] = 300,
    seeds: Annotated[int, typer.Option("--seeds", min=1, metavar="N", help="Train each with seeds 1 to N.")] = 3,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The runs; left out, runs/compare-NAME.")] = None,
    overrides: Set = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the comparison in --out, if there is one.")] = False,
    as_json: Json = False,
) -> int:
    """All runs share seeds, data and their order. The recipe as it is comes first; differences from it are taken seed by seed.

    Loss is that of the validation data after the last step, with the sample standard deviation over the seeds; speed that of training.
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
        answer(stopped.to_json(), as_json, [f"stopped; saved in {folder}; the same command with --resume goes on"])
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
