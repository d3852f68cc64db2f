"""Train a recipe on SST-2 without pre-training and report dev accuracy per seed, beside a naive-Bayes SVM.

    python -m benchmarks.sst2 --root data/sst2 [--recipe sst2] [--seeds 1 2 3 4 5] [--out runs/sst2] [--set FIELD=VALUE ...]
        [--validation] [--resume]

The dev set is read once per seed, after training. The weights are selected on a tenth of the training set. benchmarks/results/sst2.json has
one record per seed.
"""

from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.svm import LinearSVC

from benchmarks.measure import append_records
from benchmarks.training_runs import Record, build_parser, run_trainings
from transom.config.data import LabeledFilesConfig
from transom.data.labeled.labeled_texts import read_labeled_texts
from transom.data.pairs.pairs import Pairs
from transom.decoding.predictors.class_metrics import evaluate_predictions
from transom.decoding.predictors.classifier import Classifier
from transom.tasks.load import load


def naive_bayes_svm(train: Pairs, test: Pairs, c: float = 0.1, smoothing: float = 1.0, interpolation: float = 0.25) -> float:
    """Return the accuracy, in percent, of a linear SVM on log-count ratios of unigrams and bigrams (Wang & Manning 2012, section 2.3).

    Args:
        train: labeled texts of two classes.
        test: labeled texts to classify.
        c: penalty parameter C of the SVM.
        smoothing: alpha, added to each count.
        interpolation: beta, the weight of the SVM's coefficients against their mean magnitude.
    """
    counts = CountVectorizer(ngram_range=(1, 2), token_pattern=r"\S+", binary=True)
    x, y = csr_matrix(counts.fit_transform(train.source)), np.array(train.target) == max(train.target)
    p, q = (smoothing + np.asarray(x[side].sum(0)).ravel() for side in (y, ~y))
    ratio = np.log((p / p.sum()) / (q / q.sum()))
    svm = LinearSVC(C=c).fit(x.multiply(ratio).tocsr(), y)
    weights = svm.coef_.ravel()
    weights = (1 - interpolation) * np.abs(weights).mean() + interpolation * weights
    predicted = counts.transform(test.source).multiply(ratio).tocsr() @ weights + svm.intercept_ > 0
    return float(100 * (predicted == (np.array(test.target) == max(train.target))).mean())


def main(arguments: list[str] | None = None) -> None:
    """Train one run per seed and write its dev accuracy and the baseline's."""
    parser = build_parser("sst2", __doc__, "sst2", n_runs=5)
    parser.add_argument("--root", type=Path, required=True, help="folder with train.tsv and dev.tsv")
    args = parser.parse_args(arguments)
    root = args.root.resolve()

    def score(folder: Path, seed: int) -> Record:
        dev, classifier = read_labeled_texts(LabeledFilesConfig(file="dev.tsv"), root), load(folder, kind=Classifier)
        result = evaluate_predictions(classifier.classify(dev.source), dev.target, dev, classifier.model.config.classes)
        return {"accuracy": round(result.accuracy, 2)}

    environment = run_trainings("sst2", args, arguments, lambda seed: [f"data.root={root}", f"training.seed={seed}"], score, "accuracy")
    if not args.validation:
        train, dev = (read_labeled_texts(LabeledFilesConfig(file=f"{name}.tsv"), root) for name in ("train", "dev"))
        accuracy = round(naive_bayes_svm(train, dev), 2)
        append_records(args.results, [{"recipe": "naive-Bayes SVM", "accuracy": accuracy, **environment}])
        print(f"naive-Bayes SVM: accuracy {accuracy}")


if __name__ == "__main__":
    main()
