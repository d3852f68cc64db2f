"""Interfaces between the training loop and tasks: data loaders, losses, metrics."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch

from transom.checkpoints.run_folder import RunFolder
from transom.config.model_overrides import UserOverrides
from transom.config.recipe import Recipe
from transom.config.training import TrainingConfig
from transom.data.batch import Batch
from transom.data.reports.report import DataReport
from transom.data.sampler import MicroBatching
from transom.models.base import Network
from transom.planning.data_fit import DataAmount, fit_to_data
from transom.planning.precision import Precision
from transom.training.objectives.objective import Objective

RecipeT = TypeVar("RecipeT", bound=Recipe)

BuildTask = Callable[[Any, "TaskContext"], "Task"]
"""A function that reads the data of a recipe and builds its task."""

ScoredPredictions = tuple[dict[str, float], tuple[Mapping[str, Any], ...]]
"""Scores of a model's predictions on validation data, if the task has any, and a few sample predictions with their inputs."""


class TaskContext(NamedTuple):
    """Folders, progress callback and part of the batches with which a task is built.

    Attributes:
        base: folder to which a relative ``data.root`` refers.
        folder: the run folder; a resumed run has its tokenizers there.
        notify: called with a short description of each stage, such as "preparing the tokenizer".
        part: index of the part of each batch that this process computes, from 0.
        n_parts: number of these parts.
        own: fields of the recipe that the user sets, if the recipe is to be fitted to the data; None in a resumed run.
    """

    base: Path
    folder: RunFolder
    notify: Callable[[str], None]
    part: int = 0
    n_parts: int = 1
    own: UserOverrides | None = None

    def fit(self, recipe: RecipeT, n_samples: int, texts: Iterable[str] | None = None) -> RecipeT:
        """Return the recipe, fitted to the amount of training data if it says so.

        Args:
            recipe: the recipe.
            n_samples: number of training samples.
            texts: the training texts; None for images and sounds.
        """
        n_characters = None if texts is None else sum(map(len, texts))
        return recipe if self.own is None else fit_to_data(recipe, DataAmount(n_samples, n_characters), self.own)

    def micro_batching(self, training: TrainingConfig, aligned: bool = False) -> MicroBatching:
        """Return how batches are divided into micro-batches, and which micro-batches this process computes."""
        return MicroBatching(training.grad_accum_steps, self.part, self.n_parts, aligned)


@runtime_checkable
class TrainLoader(Protocol):
    """An endless loader of training batches, whose state is one integer: the number of samples seen."""

    @property
    def n_samples(self) -> int:
        """Number of samples per epoch."""
        ...

    def batches_from(self, position: int) -> Iterator[tuple[int, Sequence[Batch]]]:
        """Yield (position after the batch, micro-batches of this process) per batch, from the given position, without end."""
        ...


@runtime_checkable
class Task(Protocol):
    """A task: its data, losses and metrics."""

    @property
    def recipe(self) -> Recipe:
        """The recipe, with values that depend on the data, such as vocabulary sizes, filled in."""
        ...

    @property
    def loader(self) -> TrainLoader:
        """The loader of training batches."""
        ...

    @property
    def report(self) -> DataReport:
        """The data report."""
        ...

    @property
    def data_hash(self) -> str:
        """Hash of all training and validation data in order."""
        ...

    def write(self, folder: RunFolder) -> None:
        """Write the files that inference needs besides the model, such as tokenizers, to the run folder."""
        ...

    def describe_sample(self, sample: int) -> str:
        """Return the place of training sample number ``sample`` in the data, such as file and line, for messages."""
        ...

    def objective(self, model: Network) -> Objective:
        """Return the training loss that the recipe sets for ``model``."""
        ...

    def flops(self, batch: Any) -> float:
        """Return the FLOPs of one forward and backward pass over ``batch``, padding included."""
        ...

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Compute the validation metrics that need no predictions, such as the loss."""
        ...

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Generate predictions for validation data; return metrics of the predictions, and a few predictions with their inputs."""
        ...
