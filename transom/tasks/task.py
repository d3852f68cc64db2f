"""Interfaces of tasks, which read data, build predictors for trained models, and support commands of the command line."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from transom.checkpoints.run_folder import RunFolder
from transom.config.model_overrides import NO_OVERRIDES, UserOverrides
from transom.config.recipe import Recipe
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.backends.decoder_backend import build_decoder_backend, build_encoder_backend
from transom.decoding.inference import Deferred, ProgressCallback
from transom.decoding.predictors.class_metrics import ClassificationMetrics
from transom.decoding.predictors.classifier import ClassPrediction
from transom.decoding.predictors.long_texts import LongTextPolicy
from transom.decoding.predictors.multi_label import LabelsPrediction, MultiLabelMetrics
from transom.errors import DataError
from transom.models.base import Network
from transom.planning.precision import Precision
from transom.training import setup
from transom.training.task_protocol import Task, TaskContext


class LoadedRun(NamedTuple):
    """The model, tokenizers and settings of a run, from which a task builds a predictor.

    Attributes:
        model: the model, prepared for inference.
        tokenizers: the tokenizers; None for models that read no text.
        recipe: the recipe of the run; None if the run folder contains no recipe.
        decoding: settings of decoding or inference: those of the recipe or of an imported model; None for the defaults.
        precision: dtype of the matrix products with the reason for the choice.
        int8: whether decoding steps and encoder blocks use int8 weights.
        origin: the run folder, for display.
    """

    model: Network
    tokenizers: Tokenizers | None
    recipe: Any
    decoding: Any
    precision: Precision
    int8: bool
    origin: str | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of a model with a single vocabulary."""
        assert self.tokenizers is not None, "a model with a vocabulary is loaded with its tokenizer"
        return self.tokenizers.source

    @property
    def decoder_backend(self) -> Any:
        """The fastest available implementation of the model's decoding steps.

        Unless ``int8`` is set, it is ``Deferred`` until it is used, because building it may compile C++ code for several seconds.

        Raises:
            ConfigError: ``int8`` is set, and the model or the machine does not support it.
        """
        if self.int8:
            return build_decoder_backend(self.model, int8=True)
        return Deferred(lambda: build_decoder_backend(self.model))

    @property
    def encoder_backend(self) -> Any:
        """The fastest available implementation of an encoder of texts or images.

        Raises:
            ConfigError: ``int8`` is set, and the model or the machine does not support it.
        """
        return build_encoder_backend(self.model, self.int8)


@runtime_checkable
class TaskClass(Protocol):
    """Interface of the class that ``Recipe.TASK`` names. It builds a task from a recipe, and a predictor from a run."""

    PREDICTOR: ClassVar[type]
    """The class of the predictor that ``predictor`` returns."""

    COMMANDS: ClassVar[Mapping[str, Callable[[Any], Any]]]
    """For each command by name, a function that builds the object that the command uses from a predictor.

    The command ``Recipe.COMMAND`` has no entry if it uses the predictor itself.
    """

    def read(self, recipe: Any, context: TaskContext) -> Task:
        """Read the data of a recipe and build the task."""
        ...

    def predictor(self, run: LoadedRun) -> Any: ...


@runtime_checkable
class TrainsTokenizers(Protocol):
    """Interface of the task classes that train tokenizers, which are those of tasks on texts."""

    def train_tokenizers(self, recipe: Any, base: Path, notify: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data.

        Args:
            recipe: the recipe with the data and the tokenizer settings.
            base: folder that a relative ``data.root`` is resolved against.
            notify: called with a line that states the amount of training data, before the tokenizers are trained.
        """
        ...


@runtime_checkable
class ClassifyCommand(Protocol):
    """Interface of the object with which ``transom classify`` reads, classifies and scores items, such as texts or images."""

    NOUN: ClassVar[str]
    """Plural noun for the classified items, such as "texts"."""

    KEY: ClassVar[str]
    """Key of a classified item in JSON output, which is the singular of ``NOUN``."""

    @property
    def max_tokens(self) -> int | None:
        """Maximum number of tokens per item, special tokens excluded; None if items are not tokenized."""
        ...

    def classify(
        self, items: Any, too_long: LongTextPolicy, notify: ProgressCallback
    ) -> Sequence[ClassPrediction | LabelsPrediction | DataError]:
        """Predict the class of each item, a text, a pair of texts or a file, or its labels; an unreadable file gets the error instead."""
        ...

    def labeled_data(self, path: Path, columns: Mapping[str, Any]) -> Any:
        """Read labeled data. For texts, ``columns`` contains the fields of ``LabeledFilesConfig`` that select columns of a table."""
        ...

    def score(
        self, known: Any, too_long: LongTextPolicy, notify: ProgressCallback, thresholds: Sequence[float] = ()
    ) -> ClassificationMetrics | MultiLabelMetrics:
        """Return classification metrics on labeled data; ``thresholds`` are further confidences below which to abstain."""
        ...


def task_class(recipe: Recipe | type[Recipe]) -> Any:
    """Import and return the task class of a recipe, which implements ``TaskClass``."""
    module, _, name = recipe.TASK.partition(":")
    return getattr(import_module(module), name)


def build_training_setup(
    recipe: Recipe,
    base: Path,
    folder: RunFolder,
    notify: Callable[[str], None] = lambda _: None,
    user_overrides: UserOverrides = NO_OVERRIDES,
    saves: bool = True,
) -> setup.TrainingSetup:
    """Build the training setup of a recipe of any task with ``training.setup.build_training_setup``."""
    return setup.build_training_setup(recipe, base, folder, task_class(recipe).read, notify, user_overrides, saves)
