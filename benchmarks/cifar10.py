"""Train a recipe on CIFAR-10 images and report test accuracy per seed.

    python -m benchmarks.cifar10 --images data/cifar10/train.zip [--recipe cifar10-vit] [--seeds 1 2 3] [--out runs/cifar10]
        [--set FIELD=VALUE ...] [--validation] [--resume]

One image in ten, chosen by the hash of its name, is held out as the test set and read once per seed, after training. The recipe splits
validation images off the rest and selects the weights on them. benchmarks/results/cifar10.json has one record per seed.
"""

import zipfile
from pathlib import Path

from benchmarks.training_runs import Record, build_parser, run_trainings
from transom.data.images.image_files import read_images
from transom.data.split import text_hash
from transom.decoding.predictors.class_metrics import evaluate_predictions
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.tasks.load import load

HELD_OUT_ONE_IN = 10
"""One image in this many is held out for testing."""


def split_held_out(images: Path, out: Path) -> tuple[Path, Path]:
    """Split a .zip of CLASS/NAME.jpg into a training and a test .zip; return their paths."""
    out.mkdir(parents=True, exist_ok=True)
    train_zip, test_zip = out / "train.zip", out / "test.zip"
    with zipfile.ZipFile(images) as archive, zipfile.ZipFile(train_zip, "w") as train, zipfile.ZipFile(test_zip, "w") as test:
        for member in archive.infolist():
            if not member.is_dir():
                part = test if text_hash(member.filename) % HELD_OUT_ONE_IN == 0 else train
                part.writestr(member.filename, archive.read(member))
    return train_zip, test_zip


def main(arguments: list[str] | None = None) -> None:
    """Train one run per seed and write its test accuracy."""
    parser = build_parser("cifar10", __doc__, "cifar10-vit")
    parser.add_argument("--images", type=Path, required=True, help="a .zip of CLASS/NAME.jpg")
    args = parser.parse_args(arguments)
    train_zip, test_zip = split_held_out(args.images, args.out)

    def score(folder: Path, seed: int) -> Record:
        classifier = load(folder, kind=ImageClassifier)
        config = classifier.model.config
        test = read_images(test_zip, config.image_size, config.channels)
        result = evaluate_predictions(classifier.classify_pixels(test.load(range(len(test)))), test.labels, test, config.classes)
        return {"accuracy": round(result.accuracy, 2), "n": result.n}

    run_trainings(
        "cifar10", args, arguments, lambda seed: [f"data.train.images={train_zip.resolve()}", f"training.seed={seed}"], score, "accuracy"
    )


if __name__ == "__main__":
    main()
