"""What a recipe learns of scikit-learn's digits: accuracy on each of five shuffled folds, a network from scratch for each.

    python -m benchmarks.digits [--recipe digits-vit] [--folds 1 2 3 4 5] [--out runs/digits] [--set FIELD=VALUE ...]
        [--validation] [--resume]

A fold is read once, at the end, by weights that were chosen on a tenth of the rest. With --validation no fold is read: to choose settings.
benchmarks/results/digits.json has a record a fold.
"""

from pathlib import Path

from benchmarks.training_runs import Record, build_parser, run_trainings
from transom.config.data import DigitsConfig
from transom.data.images.digits import load_digits
from transom.decoding.predictors.classifier import evaluate_predictions
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.tasks.load import load_as


def score(folder: Path, fold: int) -> Record:
    """Score a network on the fold that it never saw."""
    classifier = load_as(ImageClassifier, folder)
    config = classifier.model.config
    _, test = load_digits(DigitsConfig(fold=fold), config.image_size, config.channels)
    found = evaluate_predictions(classifier.classify_pixels(test.load(range(len(test)))), test.labels, test, config.classes)
    return {"accuracy": round(found.accuracy, 2), "n": found.n}


def main(arguments: list[str] | None = None) -> None:
    """Train the folds one after another and write what they reached."""
    args = build_parser("digits", __doc__, "digits-vit", "folds", 5).parse_args(arguments)
    run_trainings("digits", args, arguments, lambda fold: [f"data.generate.fold={fold}"], score, "accuracy")


if __name__ == "__main__":
    main()
