"""Interface of a task: reads its data, builds predictors for its models, and supports verbs of the command line."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from transom.checkpoints.run_folder import RunFolder
from transom.config.finetune import NOTHING_ASKED, Asked
from transom.config.recipe import Recipe
from transom.data.tokenizer.tokenizer import Tokenizer, Tokenizers
from transom.decoding.backends.searcher import searcher_of
from transom.decoding.inference import Deferred, Tell
from transom.decoding.predictors.classifier import Classified, Scores
from transom.decoding.predictors.long_texts import TooLong
from transom.models.network import Network
from transom.planning.precision import Precision
from transom.training import setup
from transom.training.task import Reader, Task


class LoadedRun(NamedTuple):
    """A run loaded from its folder, from which a task builds a predictor.

    Attributes:
        model: the model, prepared for inference.
        tokenizers: the tokenizers; None for models that read no text.
        recipe: the recipe of the run, of this task; None if the folder has none.
        precision: dtype of the matrix products with the reason for the choice.
        eight_bits: use int8 weights in the decoding steps.
        origin: the run folder, for display.
    """

    model: Network
    tokenizers: Tokenizers | None
    recipe: Any
    precision: Precision
    eight_bits: bool
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
    def searcher(self) -> Any:
        """The fastest implementation of the model's decoding steps; ``Deferred``, because making it may compile C++ for seconds.

        Raises:
            ConfigError: ``eight_bits`` is set, and the model or the machine does not support it.
        """
        if self.eight_bits:
            return searcher_of(self.model, eight_bits=True)
        return Deferred(lambda: searcher_of(self.model))


@runtime_checkable
class TaskClass(Protocol):
    """The class that ``Recipe.TASK`` names: builds a task from the data of a recipe, and a predictor from the model of a run."""

    PREDICTOR: ClassVar[type]
    """The class that ``predictor`` returns."""

    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]]
    """Functions that build the object a verb uses from a predictor; ``Recipe.VERB`` is missing if it uses the predictor itself."""

    def read(self, recipe: Any, reader: Reader) -> Task:
        """Read the data of a recipe and build the task."""
        ...

    def predictor(self, run: LoadedRun) -> Any:
        """Return the predictor of a run."""
        ...


@runtime_checkable
class LearnsSymbols(Protocol):
    """A task class that trains tokenizers: a task on text."""

    def train_tokenizers(self, recipe: Any, base: Path, tell: Callable[[str], None]) -> Tokenizers:
        """Train the tokenizers of a recipe on its training data; call ``tell`` with a line of progress."""
        ...


@runtime_checkable
class Classifying(Protocol):
    """The object that ``transom classify`` uses."""

    NOUN: ClassVar[str]
    """Noun for the classified items, in the plural."""

    KEY: ClassVar[str]
    """The same noun in the singular, the key of an item in JSON output."""

    @property
    def max_tokens(self) -> int | None:
        """Maximum tokens of an item, special tokens excluded; None if items are never truncated."""
        ...

    def classify(self, items: list[str], too_long: TooLong, tell: Tell) -> list[Classified]:
        """Predict the class of each item: a text or a file."""
        ...

    def score(self, labelled: Path, too_long: TooLong, tell: Tell) -> Scores:
        """Return classification metrics on labeled data."""
        ...


def task_of(recipe: Recipe | type[Recipe]) -> Any:
    """Import and return the task class of a recipe, a ``TaskClass``."""
    module, _, name = recipe.TASK.partition(":")
    return getattr(import_module(module), name)


def set_up(
    recipe: Recipe, base: Path, folder: RunFolder, tell: Callable[[str], None] = lambda _: None, asked: Asked = NOTHING_ASKED
) -> setup.Parts:
    """Set up the training of a recipe of any task; see ``training.setup.set_up``."""
    return setup.set_up(recipe, base, folder, task_of(recipe).read, tell, asked)
