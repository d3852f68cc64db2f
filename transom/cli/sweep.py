"""``transom sweep``: a search over fields of a recipe by successive halving."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transom.cli.options import RecipeArgument, SetOption, WithDataOptions
from transom.cli.output import JsonOption, align_columns, print_note, print_result
from transom.cli.pictures import save_picture
from transom.config.arguments import Files, file_overrides
from transom.errors import DivergedError
from transom.tasks.signals import defer_signals

if TYPE_CHECKING:
    from transom.tasks.sweep import Sweep, SweepRow

EXAMPLES = """
transom sweep phrasebook --over training.learning_rate=1e-4..1e-2 --over model.dropout=0.0,0.1,0.3
transom sweep text-bpe --text notes --over training.learning_rate=1e-4..1e-2 --steps 1000 --seeds 2
transom sweep my.toml --over training.optimizer=adamw,muon --over model.n_layers=2..6 --runs 16 --out runs/search
"""

PICTURE = "sweep.svg"
"""File name of the picture in the folder of the sweep."""

MAX_DECIMAL = 1e5
"""Metrics from here on have significant digits instead of decimals."""

app = typer.Typer(add_completion=False)


@app.command()
@WithDataOptions
def sweep(
    recipe: RecipeArgument,
    files: Files,
    over: Annotated[
        list[str],
        typer.Option(
            "--over",
            metavar="FIELD=VALUES",
            help="Field of the recipe to search over: LOW..HIGH for a range, or A,B,C for a list. Repeatable.",
        ),
    ],
    runs: Annotated[int, typer.Option("--runs", min=1, max=1000, metavar="N", help="Number of configurations.")] = 8,
    seeds: Annotated[
        int, typer.Option("--seeds", min=1, max=1000, metavar="N", help="Train each configuration with each seed from 1 to N.")
    ] = 1,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            metavar="N",
            help="Optimizer steps of a whole run, with a warmup shortened in proportion. Default: those of the recipe.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder for the runs. Default: runs/sweep-NAME.")] = None,
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print the validation metric of each configuration, the best first (Jamieson and Talwalkar 2016; Li et al. 2018, section 2).

    All configurations are trained for a part of the steps. The better half is continued to twice as many, and so on, until one is left with
    all steps. Runs are compared by training.best_checkpoint_metric on validation data, as the mean over the seeds; test data play no part.
    A run that diverges counts as worst; if all configurations diverge, the exit code is 2. The schedule of the learning rate is that of a
    whole run throughout.

    A range above 0 whose end is at least 10 times its start is sampled on a logarithmic scale, others evenly; whole numbers stay whole. The
    draw covers each range, and takes the values of lists in turn. The recipe's training.seed is its seed.

    The same command continues a sweep that was stopped. The folder holds the runs, the results as JSON, a picture, and best.toml, a recipe
    with the best values and the recipe's own number of steps, for transom train.
    """
    with defer_signals():
        from transom.tasks.progress import show_progress
        from transom.tasks.sweep import Sweep

    all_overrides = [*file_overrides(recipe, overrides or [], files), *(overrides or [])]
    folder = out or Path("runs") / f"sweep-{Path(recipe).stem}"
    search = Sweep(recipe, all_overrides, over, runs, seeds, steps, folder)
    for line in () if as_json else search.notes:
        print_note(line)
    with show_progress("steps", quiet=as_json) as notify:
        stopped = search.train(notify)
    if stopped is not None:
        print_result(stopped.to_json(), as_json, [f"stopped; saved in {folder}; repeat the command to continue"])
        return stopped.exit_code
    if not (search.n_trained or as_json):
        print_note(f"nothing was trained: all runs in {folder} were finished before")
    value = {"recipe": recipe, **search.write_results()}
    rows = search.rows
    if rows[0].diverged:
        print_result(value, as_json, _table(search, rows))
        raise DivergedError(
            f"{folder}: expected a configuration that converges, found that all {len(rows)} diverged; search over lower learning rates"
        )
    _draw(search, recipe, rows, folder, as_json)
    print_result(value, as_json, [*_table(search, rows), *_conclusion(search, rows, folder)])
    return 0


def _draw(search: "Sweep", recipe: str, rows: Sequence["SweepRow"], folder: Path, as_json: bool) -> None:
    """Draw the picture; without matplotlib, say how to get it."""
    if find_spec("matplotlib") is None:
        if not as_json:
            print_note("no picture: it requires matplotlib; pip install 'transom[plots]' and repeat the command")
        return
    from transom.inspection.plots.sweep import sweep_picture

    metric = search.metric
    title = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
    is_log = {axis.field: axis.is_log for axis in search.axes if not axis.values}
    seeds = {(row.configuration.number + 1, row.rung): row.metrics for row in rows if len(row.metrics) > 1}
    points = [point._replace(seeds=seeds.get((point.configuration, point.rung), ())) for point in search.points]
    save_picture(sweep_picture(Path(recipe).stem, title, points, rows[0].configuration.number + 1, is_log), folder / PICTURE)


def _table(search: "Sweep", rows: Sequence["SweepRow"]) -> list[str]:
    """Format the results, the best first."""
    metric, fields = search.metric, list(rows[0].configuration.values)
    n_figures = 2 if search.n_seeds > 1 else 1
    cells = [["rank", *fields, *[metric.name, "std"][:n_figures], "steps", "seconds", "folder"]]
    for rank, row in enumerate(rows, 1):
        figures: dict[str, Any] = row.to_json()["metric"]
        shown = (["diverged", ""] if row.diverged else [_format(figures[name], metric.digits) for name in ("mean", "std")])[:n_figures]
        values = row.configuration.values.values()
        cells.append([str(rank), *values, *shown, f"{row.steps:,}", f"{row.seconds:,.0f}", row.configuration.folder])
    unit = f", in {metric.unit}" if metric.unit else ""
    spread = f"std is the sample standard deviation over {search.n_seeds} seeds" if n_figures > 1 else "--seeds 3 would show the spread"
    return [
        *align_columns(cells),
        f"{metric.name} of the best validation of each run{unit}; {spread}",
        *(f"diverged: {row.diverged}" for row in rows if row.diverged),
    ]


def _format(value: float, digits: int) -> str:
    """Format a metric with some decimals, or a huge one with five significant digits."""
    return f"{value:.{digits}f}" if abs(value) < MAX_DECIMAL else f"{value:.5g}"


def _conclusion(search: "Sweep", rows: Sequence["SweepRow"], folder: Path) -> list[str]:
    """Name the best values, and how to train with them."""
    settings = " ".join(f"--set {override}" for override in rows[0].configuration.overrides)
    best, training = folder / "best.toml", search.recipe.training
    if training.fit_to_data:
        use = (
            f"add them to your transom train command, which fits steps to the data; {best} has {training.max_steps:,} steps, as the recipe"
        )
    else:
        use = f"train them with all steps: transom train {best}"
    return [f"best values: {settings}", use]
