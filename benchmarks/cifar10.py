"""What recipes learn of small photographs: accuracy on images set apart before anything is trained, seed by seed.

    python -m benchmarks.cifar10 --images data/cifar10/train.zip [--recipe cifar10-vit] [--seeds 1 2 3] [--out runs/cifar10]
        [--set FIELD=VALUE ...]

One image of ten, chosen by the hash of its name, is set apart for the report and read once a seed, at the end. Of the others the recipe
splits its own validation images off, by which weights are chosen. benchmarks/results/cifar10.json has a record a seed.
"""

import argparse
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import transom
from benchmarks.measure import add_records, facts, mean_and_spread
from transom.decoding.classifier import scored
from transom.decoding.image_classifier import ImageClassifier
from transom.decoding.load import load_as
from transom.inputs.split import text_hash
from transom.inputs.vision.images import read_images
from transom.planning.machine import measure_peak
from transom.planning.parameters import count_parameters
from transom.planning.precision import choose_threads

RESULTS = Path(__file__).parent / "results"
APART = 10
"""One image of so many is for the report."""


def set_apart(images: Path, out: Path) -> tuple[Path, Path]:
    """Write the images of a .zip of CLASS/NAME.jpg to two: those to learn from, and those for the report."""
    out.mkdir(parents=True, exist_ok=True)
    learnt, reported = out / "learnt.zip", out / "reported.zip"
    with zipfile.ZipFile(images) as every, zipfile.ZipFile(learnt, "w") as most, zipfile.ZipFile(reported, "w") as few:
        for member in every.infolist():
            if not member.is_dir():
                (few if text_hash(member.filename) % APART == 0 else most).writestr(member.filename, every.read(member))
    return learnt, reported


def one_seed(recipe: str, learnt: Path, reported: Path, seed: int, out: Path, overrides: list[str]) -> dict[str, Any]:
    """Train a seed and score it on what was set apart."""
    start, folder = time.monotonic(), out / f"{Path(recipe).stem}-seed-{seed}"
    fields = [f"data.train.images={learnt.resolve()}", f"training.seed={seed}", *overrides]
    run = transom.train(recipe, out=folder, overrides=fields, overwrite=True)
    minutes = (time.monotonic() - start) / 60
    classifier = load_as(ImageClassifier, folder)
    config = classifier.model.config
    test = read_images(reported, config.image_size, config.channels)
    found = scored(classifier.classify_pixels(test.load(range(len(test)))), test.labels, test, config.classes)
    parameters = count_parameters(config).total
    facts_of_run = {"recipe": recipe, "seed": seed, "parameters": parameters, "minutes": round(minutes, 2), "steps": run.step}
    return facts_of_run | {"validation": run.best, "accuracy": round(found.accuracy, 2), "n": found.n}


def main(arguments: list[str] | None = None) -> None:
    """Train the seeds one after another and write what they reached."""
    asked = _parser().parse_args(arguments)
    path = asked.results or RESULTS / "cifar10.json"
    machine = facts("python -m benchmarks.cifar10 " + " ".join(arguments or sys.argv[1:]), choose_threads().count, measure_peak())
    learnt, reported = set_apart(asked.images, asked.out)
    values = []
    for seed in asked.seeds:  # each record is written at once: a seed takes an hour
        record = one_seed(asked.recipe, learnt, reported, seed, asked.out, asked.overrides) | {"facts": machine}
        add_records(path, [record])
        values.append(record["accuracy"])
    print(f"{asked.recipe}: accuracy {mean_and_spread(values)}; records in {path}")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cifar10", description=__doc__, formatter_class=form)
    parser.add_argument("--images", type=Path, required=True, help="a .zip of CLASS/NAME.jpg")
    parser.add_argument("--recipe", default="cifar10-vit", help="packaged recipe or TOML file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one run each")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar10"), help="folder for the runs")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="FIELD=VALUE", help="change the recipe")
    parser.add_argument("--results", type=Path, help="JSON file; default benchmarks/results/cifar10.json")
    return parser


if __name__ == "__main__":
    main()
