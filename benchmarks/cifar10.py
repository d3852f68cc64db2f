"""What recipes learn of small photographs: accuracy on images set apart before anything is trained, seed by seed.

    python -m benchmarks.cifar10 --images data/cifar10/train.zip [--recipe cifar10-vit] [--seeds 1 2 3] [--out runs/cifar10]
        [--set FIELD=VALUE ...] [--validation]

One image of ten, chosen by the hash of its name, is set apart for the report and read once a seed, at the end. Of the others the recipe
splits its own validation images off, by which weights are chosen. benchmarks/results/cifar10.json has a record a seed.
"""

import time
import zipfile
from pathlib import Path

import transom
from benchmarks.learning import Record, command_line, learn
from transom.decoding.classifier import scored
from transom.decoding.image_classifier import ImageClassifier
from transom.decoding.load import load_as
from transom.inputs.split import text_hash
from transom.inputs.vision.images import read_images
from transom.planning.parameters import count_parameters

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


def one_seed(recipe: str, learnt: Path, reported: Path, seed: int, out: Path, overrides: list[str], validation: bool) -> Record:
    """Train a seed and, unless only validation counts, score it on what was set apart."""
    start, folder = time.monotonic(), out / f"{Path(recipe).stem}-seed-{seed}"
    fields = [f"data.train.images={learnt.resolve()}", f"training.seed={seed}", *overrides]
    run = transom.train(recipe, out=folder, overrides=fields, overwrite=True)
    classifier = load_as(ImageClassifier, folder)
    config = classifier.model.config
    n_parameters, minutes = count_parameters(config).total, round((time.monotonic() - start) / 60, 2)
    record: Record = {
        "recipe": recipe,
        "seed": seed,
        "parameters": n_parameters,
        "minutes": minutes,
        "steps": run.step,
        "validation": run.best,
    }
    if validation:
        return record
    test = read_images(reported, config.image_size, config.channels)
    found = scored(classifier.classify_pixels(test.load(range(len(test)))), test.labels, test, config.classes)
    return record | {"accuracy": round(found.accuracy, 2), "n": found.n}


def main(arguments: list[str] | None = None) -> None:
    """Train the seeds one after another and write what they reached."""
    parser = command_line("cifar10", __doc__, "cifar10-vit")
    parser.add_argument("--images", type=Path, required=True, help="a .zip of CLASS/NAME.jpg")
    asked = parser.parse_args(arguments)
    learnt, reported = set_apart(asked.images, asked.out)

    def one(seed: int) -> Record:
        return one_seed(asked.recipe, learnt, reported, seed, asked.out, asked.overrides, asked.validation)

    learn("cifar10", asked, arguments, one, "accuracy")


if __name__ == "__main__":
    main()
