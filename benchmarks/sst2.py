"""What recipes learn from SST-2's own sentences: accuracy on dev, seed by seed, with a naive-Bayes SVM beside.

    python -m benchmarks.sst2 --root data/sst2 [--recipe sst2] [--seeds 1 2 3 4 5] [--out runs/sst2] [--set FIELD=VALUE ...]

dev is read once a seed, at the end, by weights that were chosen on a tenth of train. benchmarks/results/sst2.json has a record a seed.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.svm import LinearSVC

import transom
from benchmarks.measure import add_records, facts, mean_and_spread
from transom.config.data import LabelledFiles
from transom.decoding.classifier import Classifier, scored
from transom.decoding.load import load_as
from transom.inputs.labelled import read_labelled
from transom.inputs.pairs import Pairs
from transom.planning.machine import measure_peak
from transom.planning.precision import choose_threads

RESULTS = Path(__file__).parent / "results"


def naive_bayes_svm(train: Pairs, test: Pairs, c: float = 0.1, smoothing: float = 1.0, interpolation: float = 0.25) -> float:
    """Return the accuracy, in percent, of a linear SVM on log-count ratios of words and pairs of words (Wang & Manning 2012, section 2.3).

    Args:
        train: texts of two classes.
        test: what to classify.
        c: the SVM's penalty.
        smoothing: alpha, added to each count.
        interpolation: beta, the SVM's share beside its mean weight.
    """
    counts = CountVectorizer(ngram_range=(1, 2), token_pattern=r"\S+", binary=True)
    x, y = csr_matrix(counts.fit_transform(train.source)), np.array(train.target) == max(train.target)
    p, q = (smoothing + np.asarray(x[side].sum(0)).ravel() for side in (y, ~y))
    ratio = np.log((p / p.sum()) / (q / q.sum()))
    svm = LinearSVC(C=c).fit(x.multiply(ratio).tocsr(), y)
    weights = svm.coef_.ravel()
    weights = (1 - interpolation) * np.abs(weights).mean() + interpolation * weights
    found = counts.transform(test.source).multiply(ratio).tocsr() @ weights + svm.intercept_ > 0
    return float(100 * (found == (np.array(test.target) == max(train.target))).mean())


def one_seed(recipe: str, root: Path, seed: int, out: Path, overrides: list[str]) -> dict[str, Any]:
    """Train a seed and score it on dev."""
    start, folder = time.monotonic(), out / f"seed-{seed}"
    run = transom.train(recipe, out=folder, overrides=[f"data.root={root}", f"training.seed={seed}", *overrides], overwrite=True)
    minutes = (time.monotonic() - start) / 60
    dev = read_labelled(LabelledFiles(file="dev.tsv"), root)
    classifier = load_as(Classifier, folder)
    accuracy = scored(classifier.classify(dev.source), dev.target, dev, classifier.model.config.classes).accuracy
    return {"recipe": recipe, "seed": seed, "minutes": round(minutes, 2), "validation": run.best, "dev accuracy": round(accuracy, 2)}


def main(arguments: list[str] | None = None) -> None:
    """Train the seeds one after another and write what they reached."""
    asked = _parser().parse_args(arguments)
    root, path = asked.root.resolve(), asked.results or RESULTS / "sst2.json"
    machine = facts("python -m benchmarks.sst2 " + " ".join(arguments or sys.argv[1:]), choose_threads().count, measure_peak())
    records = [one_seed(asked.recipe, root, seed, asked.out, asked.overrides) | {"facts": machine} for seed in asked.seeds]
    train, dev = (read_labelled(LabelledFiles(file=f"{name}.tsv"), root) for name in ("train", "dev"))
    baseline = {"recipe": "naive-Bayes SVM", "dev accuracy": round(naive_bayes_svm(train, dev), 2), "facts": machine}
    add_records(path, [*records, baseline])
    print(f"{asked.recipe}: dev accuracy {mean_and_spread([record['dev accuracy'] for record in records])}")
    print(f"naive-Bayes SVM: dev accuracy {baseline['dev accuracy']}; all in {path}")


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sst2", description=__doc__, formatter_class=form)
    parser.add_argument("--root", type=Path, required=True, help="folder with train.tsv and dev.tsv")
    parser.add_argument("--recipe", default="sst2", help="packaged recipe or TOML file")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="one run each")
    parser.add_argument("--out", type=Path, default=Path("runs/sst2"), help="folder for the runs")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="FIELD=VALUE", help="change the recipe")
    parser.add_argument("--results", type=Path, help="JSON file; default benchmarks/results/sst2.json")
    return parser


if __name__ == "__main__":
    main()
