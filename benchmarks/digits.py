"""What a recipe learns of scikit-learn's digits: accuracy on each of five shuffled folds, a network from scratch for each.

    python -m benchmarks.digits [--recipe digits-vit] [--folds 1 2 3 4 5] [--validation] [--out runs/digits] [--set FIELD=VALUE ...]

A fold is read once, at the end, by weights that were chosen on a tenth of the rest. With --validation no fold is read: to choose settings.
benchmarks/results/digits.json has a record a fold.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import transom
from benchmarks.measure import facts, mean_and_spread
from transom.config.data import Digits
from transom.decoding.classifier import scored
from transom.decoding.image_classifier import ImageClassifier
from transom.decoding.load import load_as
from transom.inputs.vision.digits import load_digits
from transom.planning.machine import measure_peak
from transom.planning.precision import choose_threads

RESULTS = Path(__file__).parent / "results"


def one_fold(recipe: str, fold: int, out: Path, overrides: list[str], validation: bool) -> dict[str, Any]:
    """Train without a fold and, unless only validation counts, score the network on it."""
    start, folder = time.monotonic(), out / f"fold-{fold}"
    run = transom.train(recipe, out=folder, overrides=[f"data.generate.fold={fold}", *overrides], overwrite=True)
    record = {"recipe": recipe, "fold": fold, "seconds": round(time.monotonic() - start, 1), "step": run.step, "validation": run.best}
    if validation:
        return record
    classifier = load_as(ImageClassifier, folder)
    config = classifier.model.config
    _, test = load_digits(Digits(fold=fold), config.image_size, config.channels)
    found = scored(classifier.classify_pixels(test.load(range(len(test)))), test.labels, test, config.classes)
    return record | {"accuracy": round(found.accuracy, 2), "n": found.n}


def main(arguments: list[str] | None = None) -> None:
    """Train the folds one after another and write what they reached."""
    asked = _parser().parse_args(arguments)
    machine = facts("python -m benchmarks.digits " + " ".join(arguments or sys.argv[1:]), choose_threads().count, measure_peak())
    records = [one_fold(asked.recipe, fold, asked.out, asked.overrides, asked.validation) | {"facts": machine} for fold in asked.folds]
    if asked.validation:
        values, name = [record["validation"]["accuracy"] for record in records], "validation accuracy"
    else:
        values, name = [record["accuracy"] for record in records], "accuracy"
        path = asked.results or RESULTS / "digits.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    slowest = max(record["seconds"] for record in records)
    print(f"{asked.recipe}: {name} {mean_and_spread(values)}; at most {slowest} s a fold")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digits", description=__doc__, formatter_class=form)
    parser.add_argument("--recipe", default="digits-vit", help="packaged recipe or TOML file that generates digits")
    parser.add_argument("--folds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="one run each")
    parser.add_argument("--validation", action="store_true", help="read no fold; print what validation says")
    parser.add_argument("--out", type=Path, default=Path("runs/digits"), help="folder for the runs")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="FIELD=VALUE", help="change the recipe")
    parser.add_argument("--results", type=Path, help="JSON file; default benchmarks/results/digits.json")
    return parser


if __name__ == "__main__":
    main()
