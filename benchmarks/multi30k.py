"""Train a translator on Multi30k for an hour and report BLEU after 20, 40 and 60 minutes, per seed.

    python -m benchmarks.multi30k --root data/multi30k [--target de] [--seeds 1 2 3] [--out runs/multi30k] [--set FIELD=VALUE ...]

The time includes the set-up. Each mark scores the weights with the lowest validation loss so far. The test set is read once per seed, after
training, and the run's access log records it. benchmarks/results/multi30k-TARGET.json has one record per seed.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transom
from benchmarks.measure import describe_environment
from benchmarks.training_runs import RESULTS
from transom.checkpoints.run_files import CONFIG, RECIPE, TOKENIZER, WEIGHTS
from transom.cli.evaluation_data import read_test_set
from transom.cli.options import PairFiles
from transom.planning.hardware import measure_peak
from transom.planning.precision import choose_threads
from transom.training.events import Event, TrainingFinished
from transom.training.translation_metrics import MetricScore, bleu

MINUTE_MARKS = (20, 40, 60)
"""Minutes after which the best weights are scored."""


@dataclass
class SaveWeightsAtMarks:
    """A callback that copies a run's best weights when a mark of ``MINUTE_MARKS`` is passed, and at the end of training."""

    folder: Path
    start: float = field(default_factory=time.monotonic)
    saved: dict[int, Path] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        """Copy the best weights if a mark has been passed since the last event."""
        minutes = (time.monotonic() - self.start) / 60
        for mark in MINUTE_MARKS:
            if mark not in self.saved and (minutes >= mark or (isinstance(event, TrainingFinished) and mark == MINUTE_MARKS[-1])):
                self.saved[mark] = self.folder.with_name(f"{self.folder.name}-at-{mark}")
                self.saved[mark].mkdir(parents=True, exist_ok=True)
                for name in (CONFIG, RECIPE, TOKENIZER, WEIGHTS):
                    if (self.folder / name).exists():
                        shutil.copy(self.folder / name, self.saved[mark])


def train_seed(target: str, root: Path, seed: int, out: Path, overrides: list[str]) -> dict[str, Any]:
    """Train one seed and return its record, with the BLEU of each mark on the validation and test sets."""
    folder = out / f"en-{target}-seed-{seed}"
    marks = SaveWeightsAtMarks(folder)
    run = transom.train(
        f"multi30k-en-{target}",
        out=folder,
        set=[f"data.root={root}", f"training.seed={seed}", *overrides],
        overwrite=True,
        callbacks=[marks],
    )
    record: dict[str, Any] = {"seed": seed, "minutes": round((time.monotonic() - marks.start) / 60, 2), "best": run.best, "steps": run.step}
    for mark, saved in sorted(marks.saved.items()):
        if (saved / WEIGHTS).exists():
            for split, name in (("val", "val"), ("test", "test_2016_flickr")):
                score = score_pairs([folder, saved] if split == "test" else [], saved, root / f"{name}.en", root / f"{name}.{target}")
                record |= {f"{split} at {mark} minutes": round(score.value, 2), "signature": score.signature}
    return record


def score_pairs(logged_runs: list[Path], saved: Path, source: Path, target: Path) -> MetricScore:
    """Translate a file with saved weights and return lowercased BLEU; the access logs of ``logged_runs`` record the reading."""
    pairs = read_test_set(logged_runs, PairFiles(source, target), "multi30k")
    return bleu(transom.load(saved).translate(pairs.source), pairs.target, lowercase=True)


def main(arguments: list[str] | None = None) -> None:
    """Train one run per seed, write its record, and print mean and standard deviation over the seeds."""
    args = _parser().parse_args(arguments)
    path = args.results or RESULTS / f"multi30k-{args.target}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    environment = describe_environment(
        "python -m benchmarks.multi30k " + " ".join(arguments or sys.argv[1:]), choose_threads().count, measure_peak()
    )
    for seed in args.seeds:
        record = train_seed(args.target, args.root.resolve(), seed, args.out, args.overrides) | {"facts": environment}
        records = [*(json.loads(path.read_text(encoding="utf-8")) if path.exists() else []), record]
        path.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(record, indent=1))
    for name in (name for name in records[-1] if " at " in name):
        values = [each[name] for each in records if name in each]
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        print(f"{name}: mean {statistics.fmean(values):.2f}, std {std:.2f}, {len(values)} seeds in {path}")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.multi30k", description=__doc__, formatter_class=form)
    parser.add_argument("--root", type=Path, required=True, help="folder with train, val and test_2016_flickr")
    parser.add_argument("--target", choices=["de", "fr"], default="de", help="target language")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds; one run each")
    parser.add_argument("--out", type=Path, default=Path("runs/multi30k"), help="folder of the runs")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="FIELD=VALUE", help="override a recipe field; may be repeated"
    )
    parser.add_argument("--results", type=Path, help="JSON file of the records (default: benchmarks/results/multi30k-TARGET.json)")
    return parser


if __name__ == "__main__":
    main()
