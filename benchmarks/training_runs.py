"""What the benchmarks of learning share: one training a seed or a fold, each with a record that is written at once."""

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

TEST_RECORD = "reported.json"
"""In a run folder: its record, once what is reported was read; it is not read again."""

Record = dict[str, Any]


def build_parser(name: str, about: str | None, recipe: str, runs: str = "seeds", n_runs: int = 3) -> argparse.ArgumentParser:
    """Begin the command line of a benchmark.

    Args:
        name: of its file.
        about: its docstring.
        recipe: what it trains where nothing else is asked for.
        runs: what its runs differ in, in the plural.
        n_runs: how many there are.
    """
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=about, formatter_class=form)
    parser.add_argument("--recipe", default=recipe, help="packaged recipe or TOML file")
    parser.set_defaults(unit=runs.removesuffix("s"))
    parser.add_argument(f"--{runs}", dest="runs", type=int, nargs="+", default=[*range(1, n_runs + 1)], help="one run each")
    parser.add_argument("--out", type=Path, default=Path("runs") / name, help="folder for the runs")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="FIELD=VALUE", help="change the recipe")
    parser.add_argument("--results", type=Path, default=RESULTS / f"{name}.json", help="JSON file that records are added to")
    parser.add_argument("--validation", action="store_true", help="leave what is reported unread: to choose settings")
    parser.add_argument("--resume", action="store_true", help="go on with the runs under --out; none is scored twice")
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
    """Train the runs one after another, and name mean and spread of a figure.

    Args:
        name: of the benchmark's file.
        args: of ``build_parser``; with ``validation`` no record is written, and the figure is validation's.
        arguments: that were parsed; None for the process's.
        fields: what the run of a number changes in the recipe.
        evaluate: reads what is reported, for the run folder of a number, and says what it found.
        metric: of the records.
        digits: of the figure, behind the point.

    Returns:
        What else every record of this sitting says: the machine, and the command.
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
        kept = folder / TEST_RECORD
        if not kept.exists():
            record |= evaluate(folder, number) | environment
            kept.write_text(json.dumps(record), encoding="utf-8")
            append_records(args.results, [record])
        values.append(json.loads(kept.read_text(encoding="utf-8"))[metric])
    print(f"{args.recipe}: {'validation ' * args.validation}{metric} {format_mean_and_std(values, digits)}")
    return environment


def _train(args: argparse.Namespace, folder: Path, fields: Sequence[str]) -> Record:
    """Train into a folder, and say how large the model is and how long it took: this sitting in all, and training in all sittings."""
    start = time.monotonic()
    if not args.resume:
        (folder / TEST_RECORD).unlink(missing_ok=True)
    run = transom.train(args.recipe, folder, [*fields, *args.overrides], resume=args.resume, overwrite=not args.resume)
    if run.reason == "stopped":
        print(f"stopped after {run.step} steps, everything saved; --resume goes on", file=sys.stderr)
        sys.exit(run.exit_code)
    return {
        "parameters": count_parameters(RunFolder.open(folder).load_config()).total,
        "minutes": round((time.monotonic() - start) / 60, 2),
        "minutes_of_training": round(run.seconds / 60, 2),
        "resumed": args.resume,
        "steps": run.step,
        "validation": run.best,
    }
