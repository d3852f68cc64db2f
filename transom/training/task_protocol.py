"""What the training loop asks of a task, the one face of all of them, and who reads a task's data."""

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
"""Reads the data of a recipe and makes a task of them."""

ScoredPredictions = tuple[dict[str, float], tuple[Mapping[str, Any], ...]]
"""Scores of a model's answers to validation data, if the task has any, and a few of the answers with what they answer to."""


class TaskContext(NamedTuple):
    """A process that reads the data of a run.

    Attributes:
        base: folder that ``data.root`` is relative to.
        folder: the run folder; the tokenizer of a run to go on with is there.
        notify: is told what is being done, in a few words.
        rank: number of the process, from 0, of those that share every batch.
        n_ranks: how many there are.
    """

    base: Path
    folder: RunFolder
    notify: Callable[[str], None]
    rank: int = 0
    n_ranks: int = 1

    def micro_batching(self, training: TrainingConfig) -> MicroBatching:
        """Give the process's slices of every batch."""
        return MicroBatching(training.grad_accum_steps, self.rank, self.n_ranks)


@runtime_checkable
class TrainLoader(Protocol):
    """A loader: training batches without end, whose whole state is one integer: a position, counted in samples."""

    @property
    def n_samples(self) -> int:
        """Samples an epoch."""
        ...

    def batches_from(self, position: int) -> Iterator[tuple[int, Sequence[Batch]]]:
        """Yield each batch, as slices, with the position behind it."""
        ...


@runtime_checkable
class Task(Protocol):
    """Data ready to be learnt from, and how to tell what was learnt."""

    @property
    def recipe(self) -> Recipe:
        """As resolved: what only the data tell, such as vocabulary sizes, filled in."""
        ...

    @property
    def loader(self) -> TrainLoader:
        """Training batches."""
        ...

    @property
    def report(self) -> DataReport:
        """What is known of the data."""
        ...

    @property
    def data_hash(self) -> str:
        """Hash of all training and validation data, in their order."""
        ...

    def write(self, folder: RunFolder) -> None:
        """Leave in the run folder what answering needs beside the model."""
        ...

    def describe_sample(self, sample: int) -> str:
        """Name a training sample by its place in the data, for people."""
        ...

    def objective(self, model: Network) -> Objective:
        """Return the loss that a model is learned from."""
        ...

    def flops(self, batch: Any) -> float:
        """Count the floating-point operations of learning from a batch, forward and backward, padding included."""
        ...

    def evaluate(self, model: Network, autocast: torch.autocast) -> dict[str, float]:
        """Measure a model on the validation data, in few passes over them."""
        ...

    def predict_validation(self, model: Network, autocast: torch.autocast, precision: Precision) -> ScoredPredictions:
        """Let a model answer validation data; return what takes answers to be measured, and a few of them to be shown."""
        ...
