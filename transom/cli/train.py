"""``transom train``: train a model, or one model per seed."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from transom.cli.options import SetOption, WithDataOptions
from transom.cli.output import JsonOption, align_columns, print_note, print_result
from transom.config.arguments import Files, training_overrides
from transom.errors import ConfigError
from transom.tasks.signals import defer_signals

if TYPE_CHECKING:
    from transom.tasks.train import RunResult

SeedsOption = Annotated[
    int | None,
    typer.Option(
        "--seeds",
        min=1,
        max=1000,
        metavar="N",
        help="Train once with each seed from 1 to N, and report the mean and standard deviation of the metrics.",
    ),
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        metavar="N",
        help="Train in N processes, on GPUs with one GPU each: parallel.data is N divided by the recipe's other axes. For"
        " several machines use torchrun -m transom train.",
    ),
]
SizeOption = Annotated[
    Literal["small", "base", "large"] | None,
    typer.Option(
        "--size",
        help="Size of the model: base is that of the recipe, small has half of its dimensions, large twice. Fields given by --set are kept."
        " Default: base, or small where a recipe for own files has few data or minutes.",
    ),
]

app = typer.Typer(add_completion=False)

EXAMPLES = """
transom train phrasebook
transom train translation --source train.en --target train.de --out runs/mine
transom train translation --source train.en --target train.de --minutes 10 --out runs/short
transom train translation --source train.en --target train.de --size small --out runs/small
transom train multi30k-en-de --set data.root=data/multi30k --out runs/en-de
transom train python-stdlib
transom train text-bpe --text notes --suffix .md --out runs/notes
transom train text-classes --labeled-data reviews.tsv --out runs/reviews
transom train text-masked --text notes --out runs/masked
transom train text-pairs --source questions.txt --target answers.txt --out runs/pairs
transom train images --images photos --out runs/photos
transom train text-classes --labeled-data reviews.tsv --init-from runs/masked --out runs/tuned
transom train instructions --instructions mine.jsonl --init-from runs/notes --set training.adapter=lora --out runs/assistant
transom train my.toml --set training.max_steps=300 --set training.optimizer=adamw
transom train --resume --out runs/mine
transom train --resume --out runs/mine --minutes 30 --set training.validate_every=200
transom train my.toml --seeds 3
"""


@app.command()
@WithDataOptions
def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME_OR_FILE",
            help="Name of a packaged recipe (see transom recipes) or path of a TOML file. Default with --resume: the recipe in --out.",
        ),
    ] = None,
    *,
    files: Files,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Run folder to write. Default: runs/ and the name of the recipe.")
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            "--init-from", metavar="RUN", help="Run folder of a model to fine-tune. Its tokenizer, architecture and weights are used."
        ),
    ] = None,
    overrides: SetOption = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            min=0,
            metavar="N",
            help="Stop after N minutes of training in all, resumed parts included, and keep the best weights.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, metavar="N", help="Train for N optimizer steps. Short for --set training.max_steps=N.")
    ] = None,
    size: SizeOption = None,
    processes: ProcessesOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, or start a run if there is none.")] = False,
    seeds: SeedsOption = None,
    as_json: JsonOption = False,
) -> int:
    """Write the weights, metrics and a report to a run folder. All settings are fields of the recipe, and --set overrides a field.

    Ctrl-C saves a checkpoint and stops. The same command with --resume continues from the checkpoint. A resumed run ends with exactly the
    same weights as an uninterrupted run.
    """
    with defer_signals():
        from transom.config.model_size import resize_model
        from transom.tasks.train import default_folder

    if (code := _follow_other_rank(seeds)) is not None:
        return code
    if recipe is None and size is not None:
        raise ConfigError(f"expected --size with NAME_OR_FILE, found --size {size} without; a resumed run keeps its size: leave --size out")
    recipe = recipe or _own_recipe(out if resume else None)
    all_overrides = training_overrides(recipe, files, overrides or [], init_from, minutes, steps)
    sized = resize_model(recipe, all_overrides, size)
    all_overrides = [*sized.overrides, *all_overrides]
    folder = out or default_folder(recipe)
    train_one = partial(_train_one, recipe, processes=processes, resume=resume, quiet=as_json, note=sized.note)
    if seeds is None:
        result = train_one(all_overrides, folder)
        print_result(result.to_json(), as_json, _result_lines(result))
        return result.exit_code
    return _train_seeds(train_one, all_overrides, folder, seeds, as_json)


def _follow_other_rank(seeds: int | None) -> int | None:
    """Take part in the run of rank 0 if torchrun has started this process as another rank, and return the exit code; otherwise None.

    Raises:
        ConfigError: torchrun has started the processes, and several runs are wanted.
    """
    with defer_signals():
        from transom.parallel.processes.torchrun import torchrun_rank
        from transom.tasks.train import follow_training

    if (place := torchrun_rank()) is None:
        return None
    if seeds is not None:
        raise ConfigError("--seeds: expected one run per torchrun, found several; start torchrun once per seed with --set training.seed=N")
    return follow_training().exit_code if place.rank > 0 else None


def _train_seeds(
    train_one: Callable[[Sequence[str], Path], "RunResult"], overrides: Sequence[str], folder: Path, seeds: int, as_json: bool
) -> int:
    """Train one model per seed, print mean and standard deviation of the metrics, and return the exit code."""
    results = []
    for seed in range(1, seeds + 1):
        if not as_json:
            print_note(f"seed {seed} of {seeds}")
        results.append(train_one([*overrides, f"training.seed={seed}"], folder / f"seed-{seed}"))
        if results[-1].stopped_by or (results[-1].late_signal and seed < seeds):
            last = [] if results[-1].stopped_by else [f"stopped before seed {seed + 1}; repeat the command with --resume to continue"]
            print_result(results[-1].to_json(), as_json, [*_result_lines(results[-1]), *last])
            return results[-1].exit_code
    summary = _seed_statistics(results)
    print_result({"runs": [result.to_json() for result in results], **summary}, as_json, _seed_table(results, summary))
    return results[-1].exit_code


def _own_recipe(run: Path | None) -> str:
    """Return the path of the recipe in the folder of a run to resume.

    Raises:
        ConfigError: ``run`` is None, or the folder contains no recipe.
    """
    from transom.checkpoints.run_files import RECIPE

    if run is None:
        raise ConfigError("expected NAME_OR_FILE, or --resume with --out RUN, found neither; transom recipes lists the packaged recipes")
    if not (run / RECIPE).is_file():
        raise ConfigError(
            f"{run}: expected a run to resume, found no {RECIPE}; give the folder of a run, or a NAME_OR_FILE to start a new run"
        )
    return str(run / RECIPE)


def _train_one(
    name: str, overrides: Sequence[str], folder: Path, processes: int | None, resume: bool, quiet: bool, note: str
) -> "RunResult":
    """Train one model; in a terminal, ask whether to overwrite an existing run and how to read an ambiguous table.

    ``note`` describes the size of the model and is printed at the start; it may be empty.
    """
    with defer_signals():
        from transom.cli.tables import Answers, answer_overrides, read_or_ask
        from transom.config.model_overrides import load_training_recipe
        from transom.tasks.progress import TrainingProgress
        from transom.tasks.train import run_training

    data = load_training_recipe(name, overrides)[0].data
    overwrite = not resume and not quiet and _confirm_overwrite(folder)

    def train(answers: Answers) -> "RunResult":
        recipe, base, user_overrides = load_training_recipe(name, [*overrides, *answer_overrides(data, answers)])
        recipe = recipe.with_processes(processes)
        if quiet:
            return run_training(recipe, base, folder, resume, overwrite, user_overrides=user_overrides)
        with TrainingProgress() as progress:
            return run_training(recipe, base, folder, resume, overwrite, [progress], progress.show_status, user_overrides, note)

    return read_or_ask(train)


def _confirm_overwrite(folder: Path) -> bool:
    """Ask in a terminal whether to overwrite an existing run, and return the answer.

    Without a terminal, or under torchrun, return False. Training then refuses to overwrite the run.
    """
    with defer_signals():
        from transom.checkpoints.run_files import contains_run
        from transom.parallel.processes.torchrun import torchrun_job

    if torchrun_job() or not (sys.stdin.isatty() and sys.stderr.isatty() and contains_run(folder)):
        return False
    return typer.confirm(f"{folder} already holds a run. Delete it and start over? (--resume continues the run instead)", err=True)


def _result_lines(result: "RunResult") -> list[str]:
    from transom.training.validation_metrics import format_metrics

    if result.stopped_by:
        return [f"stopped at step {result.step:,}; saved in {result.folder}; repeat the command with --resume to continue"]
    best = ", ".join([*format_metrics(result.best), *([] if result.weights is None else [f"{result.weights} weights"])])
    return [
        f"best validation, step {result.best['step']:,.0f}: {best}" if result.best else "no validation",
        *([f"trivial predictor: {result.baseline}"] if result.best and result.baseline else []),
        *(f"warning: {problem}" for problem in result.problems),
        f"model in {result.folder}, report in {result.folder / 'report.html'}",
        f"try: {result.example}",
    ]


def _seed_statistics(results: Sequence["RunResult"]) -> dict[str, dict[str, float]]:
    """Return the mean and the sample standard deviation over seeds of each validation metric; NaN as the deviation of one seed."""
    from transom.tasks.short_runs import mean_and_std
    from transom.training.validation_metrics import all_metrics, language_tags

    suffixes = ["", *(f"/{tag}" for tag in language_tags(results[0].best))]
    names = [figure.key + ending for ending in suffixes for figure in all_metrics() if figure.key + ending in results[0].best]
    figures = {name: mean_and_std([result.best[name] for result in results]) for name in names}
    return {figure: {name: figures[name][figure] for name in names} for figure in ("mean", "std")}


def _seed_table(results: Sequence["RunResult"], summary: Mapping[str, Mapping[str, float]]) -> list[str]:
    names = list(summary["mean"])
    rows = [["seed", *names, "step", "minutes"]]
    for seed, result in enumerate(results, 1):
        figures = [f"{result.best[name]:.4f}" for name in names]
        rows.append([str(seed), *figures, f"{result.best['step']:.0f}", f"{result.seconds / 60:.1f}"])
    for label in ("mean", "std") if len(results) > 1 else ("mean",):
        values = summary[label]
        rows.append([label, *(f"{values[name]:.4f}" for name in names), "", ""])
    spread = "std is the sample standard deviation" if len(results) > 1 else "--seeds 3 would show the spread"
    return [*align_columns(rows), f"validation metrics of the best weights; {spread}"]
