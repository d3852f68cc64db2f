"""``transom average``: average the last checkpoints of a run into a new run folder."""

from pathlib import Path
from typing import Annotated

import typer

from transom.cli.gc_imports import gc_frozen_imports
from transom.cli.options import RunArgument, reject_options
from transom.cli.output import JsonOption, align_columns, print_note, print_result
from transom.errors import ConfigError

EXAMPLES = """
transom average runs/en-de --last 5
transom average runs/en-de --last 5 --out runs/en-de-mean
transom average runs/en-de --checkpoints step-6000,step-6500
"""

app = typer.Typer(add_completion=False)


@app.command()
def average(
    run: RunArgument,
    *,
    last: Annotated[
        int | None, typer.Option("--last", min=2, metavar="N", help="Number of checkpoints, from the newest back. Default: all kept ones.")
    ] = None,
    checkpoints: Annotated[
        list[str] | None,
        typer.Option("--checkpoints", metavar="STEPS", help="Checkpoints to average instead, as step-500,step-1000. Repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run folder to write. Default: RUN-averaged.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a new run folder with the mean of the weights; the run itself stays as it is. Every command loads the new folder.

    The validation losses of the run, of its newest averaged checkpoint and of the average are printed. training.keep_checkpoints sets how
    many checkpoints a run keeps. training.average averages during training.
    """
    chosen = [_step(each) for value in checkpoints or () for each in value.split(",")]
    if chosen:
        reject_options({"--last": last}, "all kept checkpoints", "--checkpoints")
    with gc_frozen_imports():
        from transom.tasks.average import average_checkpoints
        from transom.tasks.progress import TrainingProgress
        from transom.training.validation_metrics import format_metrics

    folder = out or run.resolve().with_name(f"{run.resolve().name}-averaged")
    if as_json:
        result = average_checkpoints(run, folder, last, chosen)
    else:
        with TrainingProgress() as progress:
            result = average_checkpoints(run, folder, last, chosen, progress.show_status)
    steps = ", ".join(f"{step:,}" for step in result.steps)
    rows = [
        *([] if result.run is None else [["the run's weights", f"{result.run['loss']:.4f}"]]),
        [f"checkpoint of step {result.steps[-1]:,}", f"{result.last['loss']:.4f}"],
        [f"average of {len(result.steps)} checkpoints", f"{result.average['loss']:.4f}"],
    ]
    lines = [
        f"averaged the checkpoints of steps {steps}",
        *align_columns([["validation loss of", ""], *rows]),
        f"validation of the average: {', '.join(format_metrics(result.average))}",
        f"model in {folder}",
    ]
    print_result(result.to_json(), as_json, lines)
    if result.is_worse:
        than = "the newest checkpoint" if result.run is None else "the run's own weights"
        print_note(f"warning: the average has a higher validation loss than {than}; use {run}, or average other checkpoints")


def _step(name: str) -> int:
    """Return the step of a checkpoint from its folder's name or its number."""
    number = name.strip().removeprefix("step-")
    if not (number.isascii() and number.isdigit() and len(number) <= 18):
        raise ConfigError(f"--checkpoints: expected steps such as step-500,step-1000, found {name!r:.80}")
    return int(number)
