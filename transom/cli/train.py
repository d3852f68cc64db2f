"""``transom train``: train one run, or the same recipe from several seeds."""

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transom.cli.answers import Json, answer, note, table
from transom.cli.options import RecipeName, Set, WithDataOptions
from transom.config.arguments import Files, training_overrides
from transom.tasks.imports import signals_held

if TYPE_CHECKING:
    from transom.config.finetune import Asked
    from transom.config.recipe import Recipe
    from transom.tasks.train import Sitting

app = typer.Typer(add_completion=False)

EXAMPLES = """
transom train phrasebook
transom train translation --source train.en --target train.de --out runs/mine
transom train translation --source train.en --target train.de --minutes 10 --out runs/short
transom train multi30k-en-de --set data.root=data/multi30k --out runs/en-de
transom train python-stdlib
transom train text-bpe --text notes --suffix .md --out runs/notes
transom train text-classes --labelled reviews.tsv --out runs/reviews
transom train text-masked --text notes --out runs/masked
transom train text-pairs --source questions.txt --target answers.txt --out runs/pairs
transom train images --images photos --out runs/photos
transom train text-classes --labelled reviews.tsv --from runs/masked --out runs/tuned
transom train instructions --instructions mine.jsonl --from runs/notes --set training.adapter=lora --out runs/assistant
transom train my.toml --set training.max_steps=300 --set training.optimizer=adamw
transom train my.toml --out runs/mine --resume
transom train my.toml --seeds 3
"""


@app.command()
@WithDataOptions
def train(
    recipe: RecipeName,
    files: Files,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run folder to write. Default: runs/NAME.")] = None,
    origin: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Fine-tune: start from this run's tokenizer, architecture and weights."),
    ] = None,
    overrides: Set = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0, metavar="N", help="Stop training after N minutes and keep the best weights.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out, if there is one.")] = False,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, metavar="N", help="Train with seeds 1 to N; report mean and standard deviation.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Write weights, metrics and a report to a run folder. The recipe holds all settings; --set overrides any of them.

    Ctrl-C saves a checkpoint. --resume continues from it and ends with bit-identical weights.
    """
    with signals_held():
        from transom.config.finetune import load_training
        from transom.tasks.train import default_folder

    sets = training_overrides(recipe, files, overrides or [], origin, minutes)
    folder = out or default_folder(recipe)
    if seeds is None:
        sitting = _one(*load_training(recipe, sets), folder, resume, as_json)
        answer(sitting.to_json(), as_json, _told(sitting))
        return sitting.exit_code
    sittings = []
    for seed in range(1, seeds + 1):
        if not as_json:
            note(f"seed {seed} of {seeds}")
        seeded = load_training(recipe, [*sets, f"training.seed={seed}"])
        sittings.append(_one(*seeded, folder / f"seed-{seed}", resume, as_json))
        if sittings[-1].stopped_by:
            answer(sittings[-1].to_json(), as_json, _told(sittings[-1]))
            return sittings[-1].exit_code
    summary = _summary(sittings)
    answer({"runs": [sitting.to_json() for sitting in sittings], **summary}, as_json, _summary_table(sittings, summary))
    return 0


def _one(recipe: "Recipe", base: Path, asked: "Asked", folder: Path, resume: bool, quiet: bool) -> "Sitting":
    from transom.tasks.progress import TrainingProgress
    from transom.tasks.train import run_training

    overwrite = not resume and not quiet and _asked_to_overwrite(folder)
    if quiet:
        return run_training(recipe, base, folder, resume, overwrite, asked=asked)
    with TrainingProgress() as progress:
        return run_training(recipe, base, folder, resume, overwrite, [progress], progress.doing, asked)


def _asked_to_overwrite(folder: Path) -> bool:
    """In a terminal, ask whether to overwrite an existing run; elsewhere training refuses to."""
    with signals_held():
        from transom.checkpoints.run_files import holds_run

    if not (sys.stdin.isatty() and sys.stderr.isatty() and holds_run(folder)):
        return False
    return typer.confirm(f"{folder} already holds a run. Delete it and start over? (--resume continues it)", err=True)


def _told(sitting: "Sitting") -> list[str]:
    from transom.training.figures import spelled

    if sitting.stopped_by:
        return [f"stopped at step {sitting.step:,}; saved in {sitting.folder}; repeat the command with --resume to continue"]
    best = ", ".join([*spelled(sitting.best), *([] if sitting.weights is None else [f"{sitting.weights} weights"])])
    return [
        f"best validation, step {sitting.best['step']:,.0f}: {best}" if sitting.best else "no validation",
        *(f"look at this: {problem}" for problem in sitting.problems),
        f"model in {sitting.folder}, report in {sitting.folder / 'report.html'}",
        f"try: {sitting.example}",
    ]


def _summary(sittings: Sequence["Sitting"]) -> dict[str, dict[str, float]]:
    """Return mean and sample standard deviation of each metric."""
    from transom.training.figures import metrics, tags

    endings = ["", *(f"/{tag}" for tag in tags(sittings[0].best))]
    names = [figure.key + ending for ending in endings for figure in metrics() if figure.key + ending in sittings[0].best]
    columns = {name: [sitting.best[name] for sitting in sittings] for name in names}
    spread = {name: statistics.stdev(values) if len(values) > 1 else 0.0 for name, values in columns.items()}
    return {"mean": {name: statistics.fmean(values) for name, values in columns.items()}, "spread": spread}


def _summary_table(sittings: Sequence["Sitting"], summary: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = list(summary["mean"])
    rows = [["seed", *names, "step", "minutes"]]
    for seed, sitting in enumerate(sittings, 1):
        figures = [f"{sitting.best[name]:.4f}" for name in names]
        rows.append([str(seed), *figures, f"{sitting.best['step']:.0f}", f"{sitting.seconds / 60:.1f}"])
    for label, values in (("mean", summary["mean"]), ("spread", summary["spread"])):
        rows.append([label, *(f"{values[name]:.4f}" for name in names), "", ""])
    return [*table(rows), "validation metrics of the best weights; std is the sample standard deviation"]
