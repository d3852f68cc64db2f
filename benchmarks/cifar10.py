"""What recipes learn of small photographs: accuracy on images set apart before anything is trained, seed by seed.

    python -m benchmarks.cifar10 --images data/cifar10/train.zip [--recipe cifar10-vit] [--seeds 1 2 3] [--out runs/cifar10]
        [--set FIELD=VALUE ...] [--validation] [--resume]

One image of ten, chosen by the hash of its name, is set apart for the report and read once a seed, at the end. Of the others the recipe
splits its own validation images off, by which weights are chosen. benchmarks/results/cifar10.json has a record a seed.
"""

import zipfile
from pathlib import Path

from benchmarks.training_runs import Record, build_parser, run_trainings
from transom.data.images.image_files import read_images
from transom.data.split import text_hash
from transom.decoding.predictors.classifier import evaluate_predictions
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.tasks.load import load_as

HELD_OUT_ONE_IN = 10
"""One image of so many is for the report."""


def split_held_out(images: Path, out: Path) -> tuple[Path, Path]:
    """Write the images of a .zip of CLASS/NAME.jpg to two: those to learn from, and those for the report."""
    out.mkdir(parents=True, exist_ok=True)
    train_zip, test_zip = out / "learnt.zip", out / "reported.zip"
    with zipfile.ZipFile(images) as every, zipfile.ZipFile(train_zip, "w") as most, zipfile.ZipFile(test_zip, "w") as few:
        for member in every.infolist():
            if not member.is_dir():
                (few if text_hash(member.filename) % HELD_OUT_ONE_IN == 0 else most).writestr(member.filename, every.read(member))
    return train_zip, test_zip


def main(arguments: list[str] | None = None) -> None:
    """Train the seeds one after another and write what they reached."""
    parser = build_parser("cifar10", __doc__, "cifar10-vit")
    parser.add_argument("--images", type=Path, required=True, help="a .zip of CLASS/NAME.jpg")
    args = parser.parse_args(arguments)
    train_zip, held_out = split_held_out(args.images, args.out)

    def score(folder: Path, seed: int) -> Record:
        classifier = load_as(ImageClassifier, folder)
        config = classifier.model.config
        test = read_images(held_out, config.image_size, config.channels)
        found = evaluate_predictions(classifier.classify_pixels(test.load(range(len(test)))), test.labels, test, config.classes)
        return {"accuracy": round(found.accuracy, 2), "n": found.n}

    run_trainings(
        "cifar10", args, arguments, lambda seed: [f"data.train.images={train_zip.resolve()}", f"training.seed={seed}"], score, "accuracy"
    )


if __name__ == "__main__":
    main()
