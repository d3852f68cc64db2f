"""Command line and training loop shared by the accuracy benchmarks: one run per seed or fold, recorded as soon as it is scored."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import transom
from benchmarks.measure import append_records, describe_environment, format_mean_and_std
from transom.checkpoints.run_folder import RunFolder
from transom.planning.hardware import measure_peak
from transom.planning.parameters import count_parameters
from transom.planning.precision import choose_threads

RESULTS = Path(__file__).parent / "results"

TEST_RECORD = "test_record.json"
"""File in a run folder that holds its record once the test set has been read, so that it is not read again."""

Record = dict[str, Any]


def build_parser(name: str, about: str | None, recipe: str, runs: str = "seeds", n_runs: int = 3) -> argparse.ArgumentParser:
    """Build the options that the accuracy benchmarks share.

    Args:
        name: module name of the benchmark.
        about: its module docstring, shown by ``--help``.
        recipe: default recipe.
        runs: name of the option that lists the runs, in the plural, such as ``seeds``.
        n_runs: default number of runs.
    """
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about, formatter_class=form)
    parser.add_argument("--recipe", default=recipe, help="packaged recipe or TOML file")
    parser.set_defaults(unit=runs.removesuffix("s"))
    parser.add_argument(f"--{runs}", dest="runs", type=int, nargs="+", default=[*range(1, n_runs + 1)], help=f"{runs}; one run each")
    parser.add_argument("--out", type=Path, default=Path("runs") / name, help="folder of the runs")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="FIELD=VALUE", help="override a recipe field; may be repeated"
    )
    parser.add_argument("--results", type=Path, default=RESULTS / f"{name}.json", help="JSON file to append the records to")
    parser.add_argument("--validation", action="store_true", help="report validation results only; the test set is not read")
    parser.add_argument("--resume", action="store_true", help="resume the runs under --out; scored runs are not scored again")
    return parser


def run_trainings(
    name: str,
    args: argparse.Namespace,
    arguments: Sequence[str] | None,
    fields: Callable[[int], Sequence[str]],
    evaluate: Callable[[Path, int], Record],
    metric: str,
    digits: int = 2,
) -> Record:
    """Train the runs in sequence, record each, and print mean and standard deviation of a metric.

    Args:
        name: module name of the benchmark.
        args: options of ``build_parser``; with ``validation`` no record is written and the validation metric is printed.
        arguments: command-line arguments, None for those of the process.
        fields: returns the recipe overrides of a run, given its number.
        evaluate: reads the test set and returns its metrics, given a run folder and its number.
        metric: the metric to summarize.
        digits: decimal places of the metric.

    Returns:
        The machine and command that are part of every record, under ``facts``.
    """
    environment = {
        "facts": describe_environment(
            f"python -m benchmarks.{name} " + " ".join(arguments or sys.argv[1:]), choose_threads().count, measure_peak()
        )
    }
    values = list[float]()
    for number in args.runs:
        folder = args.out / f"{Path(args.recipe).stem}-{args.unit}-{number}"
        record = {"recipe": args.recipe, args.unit: number, **_train(args, folder, fields(number))}
        if args.validation:
            values.append(record["validation"][metric])
            continue
        test_record = folder / TEST_RECORD
        if not test_record.exists():
            record |= evaluate(folder, number) | environment
            test_record.write_text(json.dumps(record), encoding="utf-8")
            append_records(args.results, [record])
        values.append(json.loads(test_record.read_text(encoding="utf-8"))[metric])
    print(f"{args.recipe}: {'validation ' * args.validation}{metric} {format_mean_and_std(values, digits)}")
    return environment


def _train(args: argparse.Namespace, folder: Path, fields: Sequence[str]) -> Record:
    """Train into a folder and return the model's size, the minutes of this process, and the minutes of training over all resumes."""
    start = time.monotonic()
    if not args.resume:
        (folder / TEST_RECORD).unlink(missing_ok=True)
    run = transom.train(args.recipe, folder, [*fields, *args.overrides], resume=args.resume, overwrite=not args.resume)
    if run.reason == "stopped":
        print(f"stopped after {run.step} steps with a checkpoint; continue with --resume", file=sys.stderr)
        sys.exit(run.exit_code)
    return {
        "parameters": count_parameters(RunFolder.open(folder).load_config()).total,
        "minutes": round((time.monotonic() - start) / 60, 2),
        "minutes_of_training": round(run.seconds / 60, 2),
        "resumed": args.resume,
        "steps": run.step,
        "validation": run.best,
    }
