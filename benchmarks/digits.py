"""What a recipe learns of scikit-learn's digits: accuracy on each of five shuffled folds, a network from scratch for each.

    python -m benchmarks.digits [--recipe digits-vit] [--folds 1 2 3 4 5] [--validation] [--out runs/digits] [--set FIELD=VALUE ...]

A fold is read once, at the end, by weights that were chosen on a tenth of the rest. With --validation no fold is read: to choose settings.
benchmarks/results/digits.json has a record a fold.
"""

import time
from pathlib import Path

import transom
from benchmarks.learning import Record, command_line, learn
from transom.config.data import Digits
from transom.decoding.classifier import scored
from transom.decoding.image_classifier import ImageClassifier
from transom.decoding.load import load_as
from transom.inputs.vision.digits import load_digits


def one_fold(recipe: str, fold: int, out: Path, overrides: list[str], validation: bool) -> Record:
    """Train without a fold and, unless only validation counts, score the network on it."""
    start, folder = time.monotonic(), out / f"fold-{fold}"
    run = transom.train(recipe, out=folder, overrides=[f"data.generate.fold={fold}", *overrides], overwrite=True)
    record: Record = {
        "recipe": recipe,
        "fold": fold,
        "seconds": round(time.monotonic() - start, 1),
        "step": run.step,
        "validation": run.best,
    }
    if validation:
        return record
    classifier = load_as(ImageClassifier, folder)
    config = classifier.model.config
    _, test = load_digits(Digits(fold=fold), config.image_size, config.channels)
    found = scored(classifier.classify_pixels(test.load(range(len(test)))), test.labels, test, config.classes)
    return record | {"accuracy": round(found.accuracy, 2), "n": found.n}


def main(arguments: list[str] | None = None) -> None:
    """Train the folds one after another and write what they reached."""
    asked = command_line("digits", __doc__, "digits-vit", "folds", 5).parse_args(arguments)
    learn("digits", asked, arguments, lambda fold: one_fold(asked.recipe, fold, asked.out, asked.overrides, asked.validation), "accuracy")


if __name__ == "__main__":
    main()
