"""Interface of a task: reads its data, builds predictors for its models, and supports commands."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from transom.checkpoints.run_folder import RunFolder
from transom.config.model_overrides import NO_OVERRIDES, UserOverrides
from transom.config.recipe import Recipe
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.backends.decoder_backend import build_decoder_backend
from transom.decoding.inference import Deferred, ProgressCallback
from transom.decoding.predictors.class_metrics import ClassificationMetrics
from transom.decoding.predictors.classifier import ClassPrediction
from transom.decoding.predictors.long_texts import LongTextPolicy
from transom.decoding.predictors.multi_label import LabelsPrediction, MultiLabelMetrics
from transom.models.base import Network
from transom.planning.precision import Precision
from transom.training import setup
from transom.training.task_protocol import Task, TaskContext


class LoadedRun(NamedTuple):
    """A run loaded from its folder, from which a task builds a predictor.

    Attributes:
        model: the model, prepared for inference.
        tokenizers: the tokenizers; None for models that read no text.
        recipe: the recipe of the run, of this task; None if the folder has none.
        precision: dtype of the matrix products with the reason for the choice.
        int8: use int8 weights in the decoding steps.
        origin: the run folder, for display.
    """

    model: Network
    tokenizers: Tokenizers | None
    recipe: Any
    precision: Precision
    int8: bool
    origin: str | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of a model with a single vocabulary."""
        assert self.tokenizers is not None, "a model with a vocabulary is loaded with its tokenizer"
        return self.tokenizers.source

    @property
    def decoding(self) -> Any:
        """Decoding settings of the recipe; None without a recipe."""
        return None if self.recipe is None else self.recipe.decoding

    @property
    def decoder_backend(self) -> Any:
        """The fastest implementation of the model's decoding steps; ``Deferred``, because making it may compile C++ for seconds.

        Raises:
            ConfigError: ``int8`` is set, and the model or the machine does not support it.
        """
        if self.int8:
            return build_decoder_backend(self.model, int8=True)
        return Deferred(lambda: build_decoder_backend(self.model))


@runtime_checkable
class TaskClass(Protocol):
    """The class that ``Recipe.TASK`` names: builds a task from the data of a recipe, and a predictor from the model of a run."""

    PREDICTOR: ClassVar[type]
    """The class that ``predictor`` returns."""

    COMMANDS: ClassVar[Mapping[str, Callable[[Any], Any]]]
    """Functions that build the object a command uses from a predictor; ``Recipe.COMMAND`` is missing if it uses the predictor itself."""

    def read(self, recipe: Any, context: TaskContext) -> Task:
        """Read the data of a recipe and build the task."""
        ...

    def predictor(self, run: LoadedRun) -> Any: ...


@runtime_checkable
class TrainsTokenizers(Protocol):
    """A task class that trains tokenizers: a task on text."""

    def train_tokenizers(self, recipe: Any, base: Path, notify: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data; call ``notify`` with a line of progress."""
        ...


@runtime_checkable
class ClassifyCommand(Protocol):
    """The object that ``transom classify`` uses."""

    NOUN: ClassVar[str]
    """Noun for the classified items, in the plural."""

    KEY: ClassVar[str]
    """The same noun in the singular, the key of an item in JSON output."""

    @property
    def max_tokens(self) -> int | None:
        """Maximum tokens of an item, special tokens excluded; None if items are never truncated."""
        ...

    def classify(
        self, items: list[str], too_long: LongTextPolicy, notify: ProgressCallback
    ) -> Sequence[ClassPrediction | LabelsPrediction]:
        """Predict the class of each item, a text or a file, or its labels."""
        ...

    def labeled_data(self, path: Path, columns: Mapping[str, Any]) -> Any:
        """Read labeled data; for texts, ``columns`` has the fields of ``LabeledFilesConfig`` that choose columns."""
        ...

    def score(
        self, known: Any, too_long: LongTextPolicy, notify: ProgressCallback, thresholds: Sequence[float] = ()
    ) -> ClassificationMetrics | MultiLabelMetrics:
        """Return classification metrics on labeled data; ``thresholds`` are further confidences below which to abstain."""
        ...


def task_class(recipe: Recipe | type[Recipe]) -> Any:
    """Import and return the task class of a recipe, a ``TaskClass``."""
    module, _, name = recipe.TASK.partition(":")
    return getattr(import_module(module), name)


def build_training_setup(
    recipe: Recipe,
    base: Path,
    folder: RunFolder,
    notify: Callable[[str], None] = lambda _: None,
    user_overrides: UserOverrides = NO_OVERRIDES,
) -> setup.TrainingSetup:
    """Set up the training of a recipe of any task; see ``training.setup.build_training_setup``."""
    return setup.build_training_setup(recipe, base, folder, task_class(recipe).read, notify, user_overrides)
