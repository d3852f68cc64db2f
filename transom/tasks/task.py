"""What the package asks of a task: to read its data, to answer with its models, and to serve verbs of the command line."""

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
    """A run as it was read from its folder, for what answers with it.

    Attributes:
        model: ready to answer.
        tokenizers: of texts; None for models that read none.
        recipe: of the run, which is of the task that is asked; None where the folder has none.
        precision: type of the matrix products, with the reason.
        eight_bits: take the decoder's steps in 8 bits.
        origin: the run folder, for people.
    """

    model: Network
    tokenizers: Tokenizers | None
    recipe: Any
    precision: Precision
    eight_bits: bool
    origin: str | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of a model that reads one kind of text."""
        assert self.tokenizers is not None, "a model with a vocabulary is loaded with its tokenizer"
        return self.tokenizers.source

    @property
    def decoding(self) -> Any:
        """How the recipe answers; None where there is no recipe."""
        return None if self.recipe is None else self.recipe.decoding

    @property
    def searcher(self) -> Any:
        """The model laid out for decoding, or a ``Deferred`` one: laying it out may compile C++, which takes seconds on a new machine.

        Raises:
            ConfigError: 8 bits are asked for, and this model or this machine cannot.
        """
        if self.eight_bits:
            return searcher_of(self.model, eight_bits=True)
        return Deferred(lambda: searcher_of(self.model))


@runtime_checkable
class TaskClass(Protocol):
    """The class of a task, which ``Recipe.TASK`` names: it makes the task of a recipe's data, and what answers with a run's model."""

    PREDICTOR: ClassVar[type]
    """What ``predictor`` gives."""

    VERBS: ClassVar[Mapping[str, Callable[[Any], Any]]]
    """What a verb works with, made of a predictor; not listed is the verb of the recipe where that is the predictor itself."""

    def read(self, recipe: Any, reader: Reader) -> Task:
        """Read the data of a recipe, and make the task of them."""
        ...

    def predictor(self, run: LoadedRun) -> Any:
        """Return what answers with the model of a run."""
        ...


@runtime_checkable
class LearnsSymbols(Protocol):
    """The class of a task on text."""

    def train_tokenizers(self, recipe: Any, base: Path, tell: Callable[[str], None]) -> Tokenizers:
        """Learn the symbols of a recipe's training data; ``tell`` is told of how many texts."""
        ...


@runtime_checkable
class Classifying(Protocol):
    """What ``transom classify`` works with."""

    NOUN: ClassVar[str]
    """What has a class, in the plural."""

    KEY: ClassVar[str]
    """The same in the singular, the name of it in JSON."""

    @property
    def max_tokens(self) -> int | None:
        """Most tokens that the model reads of one; None where nothing is ever cut."""
        ...

    def classify(self, items: list[str], too_long: TooLong, tell: Tell) -> list[Classified]:
        """Name the class of each: of a text, or of a file."""
        ...

    def score(self, labelled: Path, too_long: TooLong, tell: Tell) -> Scores:
        """Compare the classes that the model names with those of labelled data."""
        ...


def task_of(recipe: Recipe | type[Recipe]) -> Any:
    """Import the class of a recipe's task, a ``TaskClass``."""
    module, _, name = recipe.TASK.partition(":")
    return getattr(import_module(module), name)


def set_up(
    recipe: Recipe, base: Path, folder: RunFolder, tell: Callable[[str], None] = lambda _: None, asked: Asked = NOTHING_ASKED
) -> setup.Parts:
    """Set up a training of whatever task the recipe is of, as ``training.setup.set_up`` does."""
    return setup.set_up(recipe, base, folder, task_of(recipe).read, tell, asked)
