"""Train the recipes for own files with 1,000, 5,000 and 25,000 examples for 5 and 20 minutes on one core, and score each on held-out data.

    taskset -c 1 python -m benchmarks.expectations --data DIR [--tasks translation ...] [--examples 1000 ...] [--minutes 5 20]

DIR holds multi30k, sst2, tinyshakespeare and cifar10. benchmarks/results/expectations.json has one record per run; runs that it holds are
skipped. ``python -m benchmarks.tables`` writes the tables of docs/expectations.md and draws its plot from the records.

The recipes are used as they are, with a time limit, so that the figures are those that a person without experience gets. The test data are
read once per run, after training: the test set of 2016 of Multi30k, the development set of SST-2, and what comes last after a shuffle: a
tenth of the speeches of tiny Shakespeare, and 2,000 images of CIFAR-10. Of SST-2, 25,000 examples mean all 6,920 training sentences.
"""

import argparse
import json
import math
import random
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import transom
from benchmarks.measure import append_records, describe_environment
from benchmarks.training_runs import RESULTS
from transom.data.images.image_files import read_images
from transom.decoding.predictors.classifier import Classifier
from transom.decoding.predictors.generator import Generator
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.decoding.predictors.translator import Translator
from transom.planning.hardware import measure_peak
from transom.tasks.classification.command import TextClassifyCommand
from transom.tasks.image_classification.task import ImageClassifyCommand
from transom.training.translation_metrics import corpus_scores

SEED = 1
N_TEST_IMAGES = 2000


class Study(NamedTuple):
    """The measurement of one task.

    Attributes:
        recipe: packaged recipe.
        files: writes the training files of a number of examples to a folder, and returns the arguments of ``transom.train``.
        score: returns the metric on the test data, given a run folder, and the folder of the written files.
        metric: name of the metric.
        unit: name of the examples, in the plural.
        n_available: number of training examples that the data set has.
    """

    recipe: str
    files: Callable[[Path, Path, int], Mapping[str, Any]]
    score: Callable[[Path, Path, Path], float]
    metric: str
    unit: str
    n_available: int


def _write(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _silent(done: int, total: int) -> None:
    """Show no progress."""


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _parallel(data: Path, folder: Path, n: int) -> Mapping[str, Any]:
    root = data / "multi30k"
    pairs = list(zip(_lines(root / "train.en"), _lines(root / "train.de"), strict=True))
    random.Random(SEED).shuffle(pairs)
    own = {"source": [english for english, _ in pairs[:n]], "target": [german for _, german in pairs[:n]]}
    return {name: _write(folder / name, lines) for name, lines in own.items()}


def _bleu(data: Path, folder: Path, run: Path) -> float:
    root = data / "multi30k"
    translations = transom.load(run, kind=Translator).translate(_lines(root / "test_2016_flickr.en"))
    return float(corpus_scores(list(map(str, translations)), _lines(root / "test_2016_flickr.de"))["bleu"])


def _reviews(data: Path, folder: Path, n: int) -> Mapping[str, Any]:
    rows = _lines(data / "sst2" / "train.tsv")
    random.Random(SEED).shuffle(rows)
    return {"labeled_data": _write(folder / "reviews.tsv", rows[:n])}


def _text_accuracy(data: Path, folder: Path, run: Path) -> float:
    command = TextClassifyCommand(transom.load(run, kind=Classifier))
    return command.score(command.labeled_data(data / "sst2" / "dev.tsv", {}), "truncate", _silent).accuracy


def _speeches(data: Path) -> list[str]:
    """Return the speeches of tiny Shakespeare in a random order."""
    speeches = (data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8").split("\n\n")
    random.Random(SEED).shuffle(speeches)
    return speeches


def _plays(data: Path, folder: Path, n: int) -> Mapping[str, Any]:
    speeches = _speeches(data)
    lines = "\n\n".join(speeches[: 9 * len(speeches) // 10]).split("\n")
    return {"text": _write(folder / "plays.txt", lines[:n])}


def _bits_per_byte(data: Path, folder: Path, run: Path) -> float:
    speeches = _speeches(data)
    (score,) = transom.load(run, kind=Generator).score(["\n\n".join(speeches[9 * len(speeches) // 10 :])])
    return -score.log_p / score.n_bytes / math.log(2)


def _photographs(data: Path, folder: Path, n: int) -> Mapping[str, Any]:
    archive = zipfile.ZipFile(data / "cifar10" / "train.zip")
    names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
    random.Random(SEED).shuffle(names)
    for part, chosen in (("train", names[:n]), ("test", names[-N_TEST_IMAGES:])):
        for name in chosen:
            place = folder / part / Path(name).parent.name / Path(name).name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(archive.read(name))
    return {"images": folder / "train"}


def _image_accuracy(data: Path, folder: Path, run: Path) -> float:
    classifier = transom.load(run, kind=ImageClassifier)
    config = classifier.model.config
    test = read_images(folder / "test", config.image_size, config.channels)
    return ImageClassifyCommand(classifier).score(test, "truncate", _silent).accuracy


STUDIES = {
    "translation": Study("translation", _parallel, _bleu, "BLEU", "sentence pairs", 29_000),
    "classification": Study("text-classes", _reviews, _text_accuracy, "accuracy", "sentences", 6_920),
    "language": Study("text-bpe", _plays, _bits_per_byte, "bits per byte", "lines", 36_000),
    "images": Study("images", _photographs, _image_accuracy, "accuracy", "images", 48_000),
}


def measure(name: str, n_examples: int, minutes: float, data: Path, out: Path) -> dict[str, Any]:
    """Train a recipe on a number of examples, and return the record of the run."""
    study, folder = STUDIES[name], out / f"{name}-{n_examples}"
    folder.mkdir(parents=True, exist_ok=True)
    files = study.files(data, folder, n_examples)
    run = transom.train(study.recipe, folder / f"run-{minutes:g}", minutes=minutes, overwrite=True, **files)
    return {
        "task": name,
        "examples": n_examples,
        "unit": study.unit,
        "minutes": minutes,
        "metric": study.metric,
        "value": round(study.score(data, folder, run.folder), 3),
        "model": run.model,
        "steps": run.step,
        "ended": run.reason,
        "seconds": round(run.seconds, 1),
        "best": run.best,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure what is asked and not yet recorded."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.expectations", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--tasks", nargs="+", default=[*STUDIES], choices=[*STUDIES], help="tasks to measure")
    parser.add_argument("--examples", type=int, nargs="+", default=[1000, 5000, 25_000], help="numbers of examples")
    parser.add_argument("--minutes", type=float, nargs="+", default=[5, 20], help="time limits in minutes")
    parser.add_argument("--out", type=Path, default=Path("runs") / "expectations", help="folder of the files and runs")
    parser.add_argument("--results", type=Path, default=RESULTS / "expectations.json", help="JSON file of the records")
    args = parser.parse_args(arguments)
    facts = describe_environment("python -m benchmarks.expectations " + " ".join(arguments or sys.argv[1:]), 1, measure_peak())
    for minutes in args.minutes:
        for n_asked in args.examples:
            for name in args.tasks:
                n_examples = min(n_asked, STUDIES[name].n_available)
                known = json.loads(args.results.read_text(encoding="utf-8")) if args.results.exists() else []
                if any((each["task"], each["examples"], each["minutes"]) == (name, n_examples, minutes) for each in known):
                    continue
                record = measure(name, n_examples, minutes, args.data.resolve(), args.out.resolve())
                append_records(args.results, [{**record, "facts": facts}])
                print(f"{name}, {n_examples:,} {record['unit']}, {minutes:g} minutes: {record['metric']} {record['value']}", flush=True)


if __name__ == "__main__":
    main()
