"""Interfaces between the training loop and tasks: data loaders, losses, metrics."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import Recipe
from transom.config.training import TrainingConfig
from transom.data.batch import Batch
from transom.data.reports.report import DataReport
from transom.data.sampler import MicroBatching
from transom.models.base import Network
from transom.planning.precision import Precision
from transom.training.objectives.objective import Objective

BuildTask = Callable[[Any, "TaskContext"], "Task"]
"""A function that reads the data of a recipe and builds its task."""

ScoredPredictions = tuple[dict[str, float], tuple[Mapping[str, Any], ...]]
"""Scores of a model's predictions on validation data, if the task has any, and a few sample predictions with their inputs."""


class TaskContext(NamedTuple):
    """The context in which a task reads its data.

    Attributes:
        base: folder to which ``data.root`` is relative.
        folder: the run folder, with the tokenizer of a resumed run.
        notify: called with short descriptions of the current work.
        rank: rank of this process, from 0.
        n_ranks: number of data-parallel processes.
    """

    base: Path
    folder: RunFolder
    notify: Callable[[str], None]
    rank: int = 0
    n_ranks: int = 1

    def micro_batching(self, training: TrainingConfig) -> MicroBatching:
        """Return the division of each batch into micro-batches of this process."""
        return MicroBatching(training.grad_accum_steps, self.rank, self.n_ranks)


@runtime_checkable
class TrainLoader(Protocol):
    """An endless loader of training batches, whose state is one integer: the number of samples seen."""

    @property
    def n_samples(self) -> int:
        """Number of samples per epoch."""
        ...

    def batches_from(self, position: int) -> Iterator[tuple[int, Sequence[Batch]]]:
        """Yield each batch as micro-batches, with the position after it."""
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
        """Write to the run folder what inference needs besides the model."""
        ...

    def describe_sample(self, sample: int) -> str:
        """Describe where a training sample is in the data, for messages."""
        ...

    def objective(self, model: Network) -> Objective:
        """Choose the training loss of the task."""
        ...

    def flops(self, batch: Any) -> float:
        """Return the FLOPs of forward and backward pass of a batch, padding included."""
        ...

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Compute the validation metrics that need no predictions, such as the loss."""
        ...

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Generate predictions for validation data; return the metrics that need them, and a few samples."""
        ...
