"""Cross-validate a recipe on scikit-learn's digits: five shuffled folds, one network trained from scratch per fold.

    python -m benchmarks.digits [--recipe digits-vit] [--folds 1 2 3 4 5] [--out runs/digits] [--set FIELD=VALUE ...]
        [--validation] [--resume]

Each test fold is read once, after training. The weights are selected on a tenth of the other folds. With --validation the test folds are
not read, so that settings can be chosen. benchmarks/results/digits.json has one record per fold.
"""

from pathlib import Path

from benchmarks.training_runs import Record, build_parser, run_trainings
from transom.config.data import DigitsConfig
from transom.data.images.digits import load_digits
from transom.decoding.predictors.class_metrics import evaluate_predictions
from transom.decoding.predictors.image_classifier import ImageClassifier
from transom.tasks.load import load


def score(folder: Path, fold: int) -> Record:
    """Return the accuracy of a trained network on its test fold."""
    classifier = load(folder, kind=ImageClassifier)
    config = classifier.model.config
    _, test = load_digits(DigitsConfig(fold=fold), config.image_size, config.channels)
    result = evaluate_predictions(classifier.classify_pixels(test.load(range(len(test)))), test.labels, test, config.classes)
    return {"accuracy": round(result.accuracy, 2), "n": result.n}


def main(arguments: list[str] | None = None) -> None:
    """Train one run per fold and write its test accuracy."""
    args = build_parser("digits", __doc__, "digits-vit", "folds", 5).parse_args(arguments)
    run_trainings("digits", args, arguments, lambda fold: [f"data.generate.fold={fold}"], score, "accuracy")


if __name__ == "__main__":
    main()
