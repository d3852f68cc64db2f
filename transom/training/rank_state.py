"""The training state of one rank, and the operations on it that all ranks of a run execute together."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transom.checkpoints.checkpoint import Checkpoints
from transom.config.recipe import Recipe
from transom.data.batch import Batch
from transom.errors import ConfigError
from transom.layers.dropout import name_dropout_sites
from transom.models.base import Network
from transom.parallel.layouts import apply_layout, gather_whole
from transom.parallel.local_pieces import local_pieces
from transom.parallel.mesh import Ranks
from transom.parallel.processes.torchrun import processes_on_machine
from transom.parallel.shared_checkpoints import SharedCheckpoints
from transom.planning.freed_memory import FreedMemoryPolicy
from transom.training.activation_checkpointing import checkpoint_activations
from transom.training.compilation import REQUESTS, compile_training_passes
from transom.training.optimizer import build_optimizer, split_groups_by_mesh
from transom.training.resume import ResumeState, load_resume_state
from transom.training.task_protocol import Task
from transom.training.train_state import (
    CheckpointState,
    gather_rng_states,
    load_optimizer,
    load_trainable,
    optimizer_tensors,
    restore_rng_states,
    trainable_tensors,
)
from transom.training.train_step import StepResult, TrainStep
from transom.training.weight_averaging import WeightAverager, WeightsName


class Restored(NamedTuple):
    """State of a run that continues from a checkpoint.

    Attributes:
        state: the file ``state.json`` of the checkpoint.
        notes: sentences for the user, such as why a later checkpoint was not used.
    """

    state: CheckpointState
    notes: tuple[str, ...]


class RankState:
    """Model, optimizer, step and weight average of one rank.

    If ranks hold shards of the weights, each averages its own shards; otherwise only rank 0 averages.

    Attributes:
        ranks: the ranks of the run.
        model: the model, in the layout of the run.
        optimizer: its optimizer.
        freed: whether freed memory is kept.
        train_step: takes optimizer steps.
        averager: averages the weights.
        checkpoints: the checkpoints of the run, which all ranks write and read together.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: Network,
        task: Task,
        dtype: torch.dtype,
        ranks: Ranks,
        checkpoints: Checkpoints,
        on_saved: Callable[[int], None] = lambda step: None,
    ) -> None:
        """Copy rank 0's weights to all ranks, apply the layout to the model, and build the optimizer.

        Args:
            recipe: the recipe of the run.
            model: the whole model, on the device of this rank.
            task: the task, with this rank's part of the batches.
            dtype: dtype of the matrix products.
            ranks: the ranks of the run.
            checkpoints: the checkpoints of the run.
            on_saved: called on rank 0 with the step of each checkpoint once it is durable.
        """
        self.ranks, self.model, self._task, self._seed = ranks, model, task, recipe.training.seed
        ranks.world.broadcast(list(trainable_tensors(model).values()))
        name_dropout_sites(model)  # by the names of the whole model
        if recipe.training.recompute:
            checkpoint_activations(model, ranks.layout)
        pipeline = apply_layout(model, ranks, dtype)
        if (options := REQUESTS.get(recipe.training.compile)) is not None:
            compile_training_passes(model, **options)
        self.optimizer = build_optimizer(model, recipe.training.optimizer, dtype)
        split_groups_by_mesh(self.optimizer)
        self.freed = FreedMemoryPolicy(ranks.device, processes_on_machine(ranks.world.size))
        objective = task.objective(model)
        self.train_step = TrainStep(model, self.optimizer, recipe.training, dtype, objective, ranks, self.freed, self._any_batch, pipeline)
        self.averager = WeightAverager(recipe.training.average, model)
        self.checkpoints = SharedCheckpoints(checkpoints, ranks.world, on_saved)

    def restore(self) -> Restored | None:
        """Continue from the latest checkpoint that fits the run on all ranks; return None if there is none.

        All of a checkpoint is checked before any of it is loaded.

        Raises:
            TransomError: there are checkpoints, and none fits.
        """
        found: ResumeState | None = None
        files, elsewhere = self.checkpoints.checkpoints, self.checkpoints.names_elsewhere(trainable_tensors(self.model))

        def accept(step: int) -> None:
            nonlocal found
            found = load_resume_state(files, step, self.train_step, self._task, self.checkpoints.peers, elsewhere)

        newest = self.checkpoints.latest(accept)
        if newest is None or found is None:
            return None
        saved, progress = found, found.state.progress
        load_trainable(self.model, saved.model)
        load_optimizer(self.model, self.optimizer, saved.optimizer)
        rank = self.ranks.world.rank
        restore_rng_states(saved.generators, rank, (self._seed, rank, progress.step))
        self.train_step.n_steps, self.train_step.n_splits = progress.step, progress.n_splits
        if saved.state.scaler is not None:
            self.train_step.scaler.load_state_dict(saved.state.scaler.model_dump(by_alias=True))
        notes = self.averager.restore(progress.n_averaged, saved.ema, saved.snapshots) if self._averages else []
        return Restored(saved.state, (*newest.rejected, *notes))

    def step(self, micro_batches: Sequence[Batch], learning_rate: float) -> StepResult:
        """Take an optimizer step, and update the weight average unless the step is skipped."""
        result = self.train_step.step(micro_batches, learning_rate, sum(map(self._task.flops, micro_batches)))
        if not result.skipped:
            self.freed.after_step()
            if self._averages:
                self.averager.after_step()
        return result

    def after_checkpoint(self, step: int) -> None:
        """Add the weights of the checkpoint at ``step`` to their average, if checkpoints are averaged."""
        if self._averages:
            self.averager.after_checkpoint(step)

    def candidates(self, step: int) -> dict[WeightsName, dict[str, Tensor]]:
        """Return on rank 0 the whole weights to validate after ``step``, as ``WeightAverager.candidates``; empty on other ranks."""
        if not self._averages:
            return {}
        return {name: gather_whole(self.model, weights, self.ranks) for name, weights in self.averager.candidates(step).items()}

    def save(self, step: int, state: Mapping[str, Any] = {}, after: Callable[[], None] = lambda: None) -> None:
        """Begin to save a checkpoint; training may continue while it is written.

        Args:
            step: number of optimizer steps.
            state: the state of rank 0, as JSON values.
            after: called on rank 0 once the checkpoint is durable, in the thread that has written it.

        Raises:
            ReplicaError: ranks hold different bits of what should be equal; the checkpoints before are kept.
        """
        if self.train_step.fault_checks is not None:
            self.train_step.fault_checks.compare(step)
        generators = gather_rng_states(self.ranks.world)
        groups = {"model": trainable_tensors(self.model), "optimizer": optimizer_tensors(self.model, self.optimizer)}
        if self.averager.ema:
            groups["ema"] = self.averager.ema
        if self.ranks.world.rank == 0:
            groups["generators"] = generators
        self.checkpoints.save(step, {name: local_pieces(tensors) for name, tensors in groups.items()}, state, after)

    @property
    def _averages(self) -> bool:
        return self.ranks.world.rank == 0 or self.ranks.splits_weights

    def _any_batch(self) -> Batch:
        """Return the first batch of an epoch in which this rank has a sample.

        Raises:
            ConfigError: it has none in all of the epoch.
        """
        loader = self._task.loader
        for _, micro_batches in islice(loader.batches_from(0), loader.n_samples):
            if micro_batches:
                return micro_batches[0]
        raise ConfigError(
            f"[parallel]: expected batches of at least {self.ranks.layout.n_batch_parts} samples, one per part, found none in an epoch;"
            " lower parallel.data, parallel.shard or parallel.expert, or use larger batches"
        )
