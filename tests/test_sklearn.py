"""The estimators of scikit-learn: on texts, and on as many of scikit-learn's own checks as text input allows."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import transom
from transom.errors import ConfigError, DataError
from transom.sklearn import TextClassifier, TextEmbedder, class_names, split

TINY: dict[str, Any] = {
    "tokenizer": {"kind": "whitespace", "vocab_size": 200},
    "model": {"d_model": 16, "d_ff": 16, "n_heads": 2, "n_layers": 1, "max_seq_len": 32},
    "training": {"batch_tokens": 512, "max_steps": 30, "validate_every": 15, "checkpoint_every": 30, "learning_rate": 0.02},
    "training.schedule.warmup_steps": 2,
}
"""A model that trains in half a second."""

SHORT = {**TINY, "training.max_steps": 2}
TEXTS = [f"{words} {letter}" for words in ("good fine", "bad awful") for letter in "abcdefghijkl"]
LABELS = ["pos"] * 12 + ["neg"] * 12


@pytest.fixture(scope="module")
def classifier() -> TextClassifier:
    """Fit a classifier of texts."""
    return TextClassifier(set=TINY, random_state=3).fit(TEXTS, LABELS)


def test_pairs_of_texts() -> None:
    pairs = [(text, text[::-1]) for text in TEXTS]
    classifier = TextClassifier(set=SHORT, random_state=3).fit([list(pair) for pair in pairs], LABELS)
    both, first = classifier.predict_proba(pairs), classifier.predict_proba(TEXTS)
    assert both.shape == first.shape == (24, 2) and np.abs(both - first).max() > 1e-4
    with pytest.raises(DataError, match="expected only texts or only pairs of texts to train on, found both"):
        TextClassifier(set=SHORT).fit([*pairs[:12], *TEXTS[12:]], LABELS)
    with pytest.raises(DataError, match="X: expected texts, found tuple in row 0"):
        classifier.predict([("a", "b", "c")])


def test_a_classifier_learns_and_predicts(classifier: TextClassifier) -> None:
    assert classifier.classes_.tolist() == ["neg", "pos"]
    assert classifier.predict(["good x", "awful y"]).tolist() == ["pos", "neg"] and classifier.score(TEXTS, LABELS) == 1
    probabilities = classifier.predict_proba(TEXTS)
    assert probabilities.shape == (24, 2) and np.allclose(probabilities.sum(1), 1)
    assert classifier.n_iter_ == 30 and classifier.validation_["accuracy"] == 100


def test_the_same_seed_gives_the_same_model(classifier: TextClassifier) -> None:
    again = clone(classifier)
    assert again.get_params() == classifier.get_params()
    assert np.array_equal(again.fit(TEXTS, LABELS).predict_proba(TEXTS), classifier.predict_proba(TEXTS))
    other = clone(classifier).set_params(random_state=np.random.RandomState(4)).fit(TEXTS, LABELS)
    assert not np.array_equal(other.predict_proba(TEXTS), classifier.predict_proba(TEXTS))


def test_a_fitted_classifier_is_copied_as_the_files_of_its_run(classifier: TextClassifier) -> None:
    state = classifier.__getstate__()
    assert state["_loaded"] is None
    assert {*state["run_files_"]} == {"config.json", "model.safetensors", "recipe.toml", "tokenizer.json"}
    assert all(isinstance(content, bytes) for content in state["run_files_"].values())
    assert np.array_equal(copy.deepcopy(classifier).predict_proba(TEXTS), classifier.predict_proba(TEXTS))


@pytest.mark.parametrize("labels", [np.arange(24) % 3 - 1, [f" {n % 2}" for n in range(24)], np.arange(24) % 2 == 0])
def test_classes_of_any_type(labels: Any) -> None:
    fitted = TextClassifier(set=SHORT).fit(np.array(TEXTS, dtype=object), labels)
    assert np.array_equal(fitted.classes_, np.unique(labels))
    assert fitted.predict(TEXTS).dtype == fitted.classes_.dtype and {*fitted.predict(TEXTS)} <= {*fitted.classes_}


@pytest.mark.long
def test_selection_and_pipelines() -> None:
    assert cross_val_score(TextClassifier(set=TINY), TEXTS, LABELS, cv=2).tolist() == [1, 1]
    steps = {"set": [TINY, {**TINY, "training.learning_rate": 1e-9}]}
    search = GridSearchCV(TextClassifier(set=TINY), steps, cv=2).fit(TEXTS, LABELS)
    assert search.best_params_["set"] is steps["set"][0] and search.predict(["good x"]).tolist() == ["pos"]
    pipeline = make_pipeline(TextEmbedder(set=SHORT), LogisticRegression()).fit(TEXTS, LABELS)
    assert pipeline.score(TEXTS, LABELS) > 0.9


@pytest.mark.long
def test_an_embedder_trains_or_takes_a_run(classifier: TextClassifier, tmp_path: Path) -> None:
    trained = TextEmbedder(set=SHORT, out=tmp_path / "run").fit(TEXTS)
    vectors = trained.transform(TEXTS)
    assert vectors.shape == (24, 16) and vectors.dtype == np.float32 and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    taken = TextEmbedder(tmp_path / "run").fit(TEXTS)
    assert np.array_equal(taken.transform(TEXTS), vectors) and len(taken.get_feature_names_out()) == 16
    assert np.array_equal(transom.load(tmp_path / "run").embed(TEXTS), vectors)
    tuned = TextClassifier(set={"training.max_steps": 1}, init_from=tmp_path / "run").fit(TEXTS, LABELS)
    assert tuned.n_iter_ == 1


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: TextClassifier().fit("one text", ["a"]), "X: expected a list of texts, found one text"),
        (lambda: TextClassifier().fit(iter([0.5]), ["a"]), "X: expected texts, found float in row 0"),
        (lambda: TextClassifier().fit([], []), "X: expected at least one text"),
        (lambda: TextClassifier().fit(["a", "b"], ["x"]), "y: expected a class for each of 2 texts, found 1"),
        (lambda: TextClassifier().fit(["a", "b"], ["x", "x"]), "y: expected at least 2 classes, found 1"),
        (lambda: TextClassifier(validation_fraction=1.0).fit(["a", "b"], ["x", "y"]), "validation_fraction: expected a number between 0"),
        (lambda: TextClassifier(set={"model.d_modle": 8}).fit(["a", "b"], ["x", "y"]), "did you mean model.d_model"),
        (lambda: TextEmbedder("/none").fit(["a"]), "/none"),
    ],
)
def test_mistakes(use: Callable[[], object], message: str) -> None:
    with pytest.raises((DataError, ConfigError, transom.TransomError), match=message):
        use()


def test_before_fit() -> None:
    with pytest.raises(NotFittedError):
        TextClassifier(init_from="somewhere").predict(["a"])
    with pytest.raises(NotFittedError):
        TextEmbedder().transform(["a"])


def test_rows_are_held_out_of_each_class() -> None:
    numbers = np.array([0] * 20 + [1] * 10 + [2])
    training, held_out = split(numbers, 0.1, 1)
    assert np.bincount(numbers[held_out], minlength=3).tolist() == [2, 1, 0] and sorted(training + held_out) == list(range(31))
    assert split(numbers, 0.1, 1) == (training, held_out) != split(numbers, 0.1, 2)
    assert split(np.array([0, 1]), 0.1, 1) == ([0, 1], [0, 1])


def test_class_names_are_legible_or_numbers() -> None:
    assert class_names(np.array([1, 2])) == ["1", "2"] and class_names(np.array(["a", " b"])) == ["0", "1"]


def test_scikit_learn_checks_texts() -> None:
    """With tags ``string`` and no ``two_d_array`` scikit-learn has checks of the interface only; all of them pass."""
    for estimator in (TextClassifier(set=SHORT), TextEmbedder(set=SHORT)):
        tags = estimator.__sklearn_tags__().input_tags
        assert tags.string and not tags.two_d_array
        with pytest.warns(Warning, match="Can't test estimator"):
            found = check_estimator(estimator, on_skip=None)
        assert {each["status"] for each in found} == {"passed"}


def words(rows: Any) -> Any:
    """Write each row of a table of numbers as a text, one word per column; leave all else as it is."""
    if hasattr(rows, "toarray"):
        return rows
    table = np.asarray(rows)
    return [" ".join(f"{chr(97 + n % 26)}{round(float(x))}" for n, x in enumerate(row)) for row in table] if table.ndim == 2 else list(rows)


class NumberClassifier(TextClassifier):
    """The classifier of texts, as one of numbers, so that scikit-learn's checks of tables apply."""

    def fit(self, X: Any, y: Any) -> "NumberClassifier":
        super().fit(words(X), y)
        return self

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(words(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


class NumberEmbedder(TextEmbedder):
    """The embedder of texts, likewise."""

    def fit(self, X: Any, y: Any = None) -> "NumberEmbedder":
        super().fit(words(X))
        return self

    def transform(self, X: Any) -> Any:
        return super().transform(words(X))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


NO_COLUMNS = "a text has no columns, whose number could be kept and compared"
ANY_TEXT = "every number becomes a word, also one that is complex or not finite"
ONE_DIMENSION = "a list of texts has one dimension, which is refused in a table of numbers"
EXPECTED_TO_FAIL = {
    "check_n_features_in": NO_COLUMNS,
    "check_n_features_in_after_fitting": NO_COLUMNS,
    "check_estimators_empty_data_messages": NO_COLUMNS,
    "check_fit2d_predict1d": ONE_DIMENSION,
    "check_estimators_nan_inf": ANY_TEXT,
}
"""Checks of tables that text input cannot pass, and why."""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "more"),
    [
        (NumberClassifier(set=SHORT), {"check_classifiers_train": NO_COLUMNS}),
        (NumberEmbedder(set=SHORT), {"check_transformer_general": NO_COLUMNS, "check_complex_data": ANY_TEXT}),
    ],
    ids=["classifier", "embedder"],
)
def test_scikit_learn_checks_tables(estimator: Any, more: dict[str, str]) -> None:
    expected = EXPECTED_TO_FAIL | more
    found = check_estimator(estimator, on_fail=None, on_skip=None, expected_failed_checks=expected)
    assert not [(each["check_name"], str(each["exception"])) for each in found if each["status"] == "failed"]
    assert {each["check_name"] for each in found if each["status"] == "xfail"} == {*expected}
    assert sum(each["status"] == "passed" for each in found) > 30
