"""Estimators with the interface of scikit-learn: a text classifier and a text embedder, trained by ``transom.train``.

    from transom.sklearn import TextClassifier

    classifier = TextClassifier(minutes=5).fit(texts, labels)
    classifier.predict_proba(["A film to remember."])

The input of an estimator is a list of strings, for ``TextClassifier`` also of pairs ``(first, second)`` of strings. Both estimators work in
``Pipeline``, ``GridSearchCV`` and ``cross_val_score``. A fitted estimator can be pickled. The pickle contains the files of its run folder
(safetensors, JSON, TOML) as bytes.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transom.checkpoints.run_files import ADAPTER, BASE, CONFIG, RECIPE, TOKENIZER, WEIGHTS
from transom.data.labeled.text_pairs import Text, is_pair
from transom.errors import ConfigError, DataError
from transom.tasks.load import load, load_embedder
from transom.tasks.train import train

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d
except ImportError:
    raise ConfigError("transom.sklearn needs scikit-learn: pip install 'transom[sklearn]'") from None

MODEL_FILES = (CONFIG, RECIPE, TOKENIZER, WEIGHTS, BASE, ADAPTER)
"""Names of the files of a run folder that a fitted estimator keeps."""


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """Base class of both estimators, which trains a model and keeps the files of its run folder as bytes.

    Attributes:
        run_files_: content of each file of ``MODEL_FILES`` in the run folder, by file name.
    """

    recipe: str | Path
    set: Mapping[str, Any] | None
    minutes: float | None
    out: str | Path | None
    progress: bool
    random_state: int | np.random.RandomState | None

    def _train(self, arguments: Mapping[str, Any], seed: int, **fields: object) -> None:
        """Train a model with the recipe, and keep the files of its run folder."""
        fields = {"training.seed": seed, **fields, **(self.set or {})}
        with TemporaryDirectory(prefix="transom-") as scratch:
            out = Path(scratch) / "run" if self.out is None else Path(self.out)
            result = train(self.recipe, out, fields, minutes=self.minutes, overwrite=True, progress=self.progress, **arguments)
            self._keep(out)
        self.n_iter_, self.validation_ = result.step, dict(result.best)

    def _keep(self, folder: Path) -> None:
        """Keep the files of a run folder, and load the model."""
        self.run_files_ = {name: (folder / name).read_bytes() for name in MODEL_FILES if (folder / name).is_file()}
        self._loaded: Any = self._load(folder)

    def _load(self, folder: Path) -> Any:
        return load(folder)

    @property
    def _model(self) -> Any:
        """The fitted model. After unpickling, it is loaded from the kept files on first use.

        Raises:
            NotFittedError: ``fit`` was not called.
        """
        check_is_fitted(self)
        if self._loaded is None:
            with TemporaryDirectory(prefix="transom-") as scratch:
                for name, content in self.run_files_.items():
                    (Path(scratch) / name).write_bytes(content)
                self._loaded = self._load(Path(scratch))
        return self._loaded

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether ``fit`` was called."""
        return hasattr(self, "run_files_")

    def _seed(self) -> int:
        if self.random_state is None:
            return 1
        if isinstance(self.random_state, int):
            return self.random_state
        return int(check_random_state(self.random_state).randint(2**31))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: all attributes except the loaded model, which the kept files replace."""
        state: dict[str, Any] = super().__getstate__()
        return {name: None if name == "_loaded" else value for name, value in state.items()}

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn, which declare the input as a list of strings."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags


class TextClassifier(ClassifierMixin, _TextEstimator):  # type: ignore[misc]
    """Text classifier: a Transformer encoder that is trained from scratch or fine-tuned.

    Args:
        recipe: name of a packaged recipe of task ``classification``, or path of a TOML file.
        set: values of recipe fields to override, such as ``{"training.max_steps": 300}``.
        minutes: maximum training time in minutes; None for no limit.
        init_from: run folder of a model to fine-tune, such as a masked language model; None to train from scratch.
        validation_fraction: fraction of the texts to hold out for selecting the best weights and for early stopping.
        out: run folder to write, which ``fit`` overwrites; None for a temporary folder.
        progress: show the progress of training.
        random_state: seed of the initial weights, the order of the texts, dropout and the choice of held-out texts.

    Attributes:
        classes_: the classes, sorted.
        n_iter_: number of training steps.
        validation_: validation metrics of the selected weights, and the step of these weights.
    """

    def __init__(
        self,
        recipe: str | Path = "text-classes",
        *,
        set: Mapping[str, Any] | None = None,
        minutes: float | None = None,
        init_from: str | Path | None = None,
        validation_fraction: float = 0.1,
        out: str | Path | None = None,
        progress: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.recipe = recipe
        self.set = set
        self.minutes = minutes
        self.init_from = init_from
        self.validation_fraction = validation_fraction
        self.out = out
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Iterable[Text], y: ArrayLike) -> Self:
        """Train the classifier on the texts ``X``, or pairs of texts, and their classes ``y``.

        Raises:
            DataError: the texts are not strings or pairs, differ in number from the classes, or are all of one class.
            TransomError: the recipe is invalid or does not train a text classifier.
        """
        if y is None:
            raise DataError("y: TextClassifier requires y to be passed, but the target y is None; give a class for each text")
        check_classification_targets(y)
        texts, labels = check_texts(X, with_pairs=True), column_or_1d(y, warn=True)
        is_paired = not isinstance(texts[0], str)
        if any(isinstance(text, str) == is_paired for text in texts):
            raise DataError("X: expected only texts or only pairs of texts to train on, found both; give one kind")
        if len(labels) != len(texts):
            raise DataError(f"y: expected a class for each of {len(texts)} texts, found {len(labels)}")
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"y: expected at least 2 classes, found {len(self.classes_)} class")
        seed = self._seed()
        training, held_out = split(numbers, self.validation_fraction, seed)
        names = class_names(self.classes_)
        with TemporaryDirectory(prefix="transom-") as scratch:
            optional = {"init_from": self.init_from, "second_field": "second" if is_paired else None}
            arguments: dict[str, Any] = {"multi_label": False} | {name: value for name, value in optional.items() if value is not None}
            for argument, rows in (("labeled_data", training), ("valid_labeled_data", held_out)):
                arguments[argument] = Path(scratch) / f"{argument}.jsonl"
                lines = (json.dumps({**_record(texts[row]), "label": names[numbers[row]]}) for row in rows)
                arguments[argument].write_text("".join(f"{line}\n" for line in lines), "utf-8")
            self._train(arguments, seed)
        return self

    def predict(self, X: Iterable[Text]) -> NDArray[Any]:
        """Return the most probable class of each text, or pair of texts."""
        probabilities = self.predict_proba(X)
        predicted: NDArray[Any] = self.classes_[probabilities.argmax(1)]
        return predicted

    def predict_proba(self, X: Iterable[Text]) -> NDArray[np.float64]:
        """Return the probability of each class for each text, (texts, classes). The columns are ordered as in ``classes_``."""
        model = self._model
        found: NDArray[np.float64] = model.predict_proba(check_texts(X, with_pairs=True))
        columns = {name: column for column, name in enumerate(model.classes_.tolist())}
        return found[:, [columns[name] for name in class_names(self.classes_)]]


class TextEmbedder(TransformerMixin, _TextEstimator):  # type: ignore[misc]
    """Text embedder, which maps a text to the mean of the last hidden states of a Transformer encoder.

    The encoder is loaded from a run folder. Without a run folder, ``fit`` trains an encoder on the texts as a masked language model (Devlin
    et al. 2019).

    Args:
        run: run folder of an encoder-only model, which ``fit`` uses without further training; None to train an encoder.
        recipe: name of a packaged recipe of task ``masked``, or path of a TOML file; used if ``run`` is None.
        set: values of recipe fields to override, such as ``{"training.max_steps": 300}``.
        minutes: maximum training time in minutes; None for no limit.
        normalize: scale each vector to unit length, so that the dot product of two vectors is their cosine similarity.
        out: run folder to write, which ``fit`` overwrites; None for a temporary folder.
        progress: show the progress of training.
        random_state: seed of the initial weights, the order of the texts, the masks, dropout and the choice of held-out texts.

    Attributes:
        n_iter_: number of training steps; not set if ``run`` is given.
        validation_: validation metrics of the selected weights, and the step of these weights; not set if ``run`` is given.
    """

    def __init__(
        self,
        run: str | Path | None = None,
        *,
        recipe: str | Path = "text-masked",
        set: Mapping[str, Any] | None = None,
        minutes: float | None = None,
        normalize: bool = True,
        out: str | Path | None = None,
        progress: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.run = run
        self.recipe = recipe
        self.set = set
        self.minutes = minutes
        self.normalize = normalize
        self.out = out
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Iterable[str], y: object = None) -> Self:
        """Train a masked language model on the texts ``X``, or load the encoder of ``run`` if it is given.

        Raises:
            DataError: the texts are not strings.
            TransomError: the recipe is invalid or does not train a masked language model, or the model of ``run`` is not encoder-only.
        """
        texts = check_texts(X)
        if self.run is not None:
            self._keep(Path(self.run))
            return self
        with TemporaryDirectory(prefix="transom-") as scratch:
            rows = [text.replace("\n", " ") for text in texts]
            training, held_out = split(np.zeros(len(rows), dtype=int), 0.05, seed := self._seed())
            arguments = dict[str, Path]()
            for argument, chosen in (("text", training), ("valid_text", held_out)):
                arguments[argument] = Path(scratch) / f"{argument}.txt"
                arguments[argument].write_text("".join(f"{rows[row]}\n" for row in chosen), "utf-8")
            self._train(arguments, seed, **{"data.train.document": "line", "data.valid.document": "line"})
        return self

    def transform(self, X: Iterable[str]) -> NDArray[np.float32]:
        """Return the embedding vector of each text, (texts, d_model)."""
        found: NDArray[np.float32] = self._model.embed(check_texts(X), self.normalize)
        return found

    def _load(self, folder: Path) -> Any:
        return load_embedder(folder)

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn, which declare that the data type of the vectors does not depend on the input."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []
        return tags

    def get_feature_names_out(self, input_features: object = None) -> NDArray[np.object_]:
        """Return a name for each column of the vectors that ``transform`` returns."""
        n_columns = self._model.model.config.d_model
        return np.array([f"textembedder{column}" for column in range(n_columns)], dtype=object)


def _record(text: Text) -> dict[str, str]:
    return {"text": text} if isinstance(text, str) else {"text": text[0], "second": text[1]}


def check_texts(X: Any, with_pairs: bool = False) -> list[Any]:
    """Return the texts ``X`` as a list of strings, and pairs of texts as tuples if they are allowed.

    Raises:
        DataError: ``X`` is a single string or a sparse matrix, contains something other than strings, or is empty.
    """
    if isinstance(X, str | bytes):
        raise DataError("X: expected a list of texts, found one text; put it in brackets: [text]")
    if hasattr(X, "toarray"):
        raise DataError("X: sparse input is not supported: expected a list of texts, found a sparse matrix; pass the texts themselves")
    texts = list(X)
    for number, text in enumerate(texts):
        if not (isinstance(text, str) or (with_pairs and is_pair(text))):
            raise DataError(f"X: expected texts, found {type(text).__name__} in row {number}; make a string of each row")
    if not texts:
        raise DataError("X: expected at least one text, found none")
    return [str(text) if isinstance(text, str) else (str(text[0]), str(text[1])) for text in texts]


def class_names(classes: NDArray[Any]) -> list[str]:
    """Return a printable name for each class: ``str(label)``, or the index of the class if these names are ambiguous or unprintable."""
    names = [str(each) for each in classes]
    legible = len(dict.fromkeys(names)) == len(names) and all(name.strip() == name and name.isprintable() and name for name in names)
    return names if legible else [str(number) for number in range(len(names))]


def split(numbers: NDArray[np.int_], fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Split row numbers at random into training rows and held-out rows, class by class.

    ``numbers`` contains the class of each row. Each class keeps at least one training row. If the fraction rounds to zero held-out rows in
    every class, all rows are returned twice, as training rows and as held-out rows.

    Raises:
        ConfigError: the fraction is not between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"validation_fraction: expected a number between 0 and 1, found {fraction}")
    order, held_out = np.random.RandomState(seed % 2**32).permutation(len(numbers)), list[int]()
    for number in np.unique(numbers):
        rows = order[numbers[order] == number]
        held_out += rows[: min(round(fraction * len(rows)), len(rows) - 1)].tolist()
    chosen = frozenset(held_out)
    return [row for row in range(len(numbers)) if row not in chosen], sorted(held_out) or list(range(len(numbers)))
