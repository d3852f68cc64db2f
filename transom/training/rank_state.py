"""The training state of one rank, and the operations on it that all ranks of a run execute together."""

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from transom.config.recipe import Recipe
from transom.data.batch import Batch
from transom.errors import ConfigError
from transom.layers.dropout import name_dropout_sites
from transom.models.base import Network
from transom.parallel.layouts import apply_layout, gather_whole, select_own
from transom.parallel.mesh import Ranks
from transom.planning.freed_memory import FreedMemoryPolicy
from transom.training.optimizer import build_optimizer, split_groups_by_mesh
from transom.training.resume import ExpectedTensors, ResumeState
from transom.training.task_protocol import Task
from transom.training.train_state import (
    gather_rng_states,
    load_optimizer,
    load_trainable,
    optimizer_tensors,
    restore_rng_states,
    trainable_tensors,
)
from transom.training.train_step import StepResult, TrainStep
from transom.training.weight_averaging import WeightAverager, WeightsName


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
        expected: names and specifications of the tensors of a checkpoint, which are those of the whole model.
    """

    def __init__(self, recipe: Recipe, model: Network, task: Task, dtype: torch.dtype, ranks: Ranks) -> None:
        """Copy rank 0's weights to all ranks, apply the layout to the model, and build the optimizer.

        Args:
            recipe: the recipe of the run.
            model: the whole model, on the device of this rank.
            task: the task, with this rank's part of the batches.
            dtype: dtype of the matrix products.
            ranks: the ranks of the run.
        """
        self.ranks, self.model, self._task = ranks, model, task
        ranks.world.broadcast(list(trainable_tensors(model).values()))
        self.expected = ExpectedTensors.of(model, build_optimizer(model, recipe.training.optimizer, dtype))
        name_dropout_sites(model)  # by the names of the whole model
        apply_layout(model, ranks)
        self.optimizer = build_optimizer(model, recipe.training.optimizer, dtype)
        split_groups_by_mesh(self.optimizer)
        self.freed = FreedMemoryPolicy(ranks.device, ranks.world.size)
        objective = task.objective(model)
        self.train_step = TrainStep(model, self.optimizer, recipe.training, dtype, objective, ranks, self.freed, self._any_batch)
        self.averager = WeightAverager(recipe.training.average, model)

    def restore(self, saved: ResumeState) -> list[str]:
        """Continue from a checkpoint; return notes on the weight average, as ``WeightAverager.restore``."""
        load_trainable(self.model, select_own(self.model, saved.model))
        load_optimizer(self.model, self.optimizer, select_own(self.model, saved.optimizer))
        restore_rng_states(saved.generators, self.ranks.world.rank)
        self.train_step.n_steps = saved.state.progress.step
        self.train_step.n_splits = saved.state.progress.n_splits
        if saved.state.scaler is not None:
            self.train_step.scaler.load_state_dict(saved.state.scaler.model_dump(by_alias=True))
        if not self._averages:
            return []
        snapshots = {step: select_own(self.model, weights) for step, weights in saved.snapshots.items()}
        return self.averager.restore(saved.state.progress.n_averaged, select_own(self.model, saved.ema), snapshots)

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

    def checkpoint(self) -> dict[str, dict[str, Tensor]]:
        """Return on rank 0 the whole tensors of a checkpoint, by file and name; without content on other ranks."""
        generators = gather_rng_states(self.ranks.world)
        if not self._averages:
            return {}
        groups = {"model": trainable_tensors(self.model), "optimizer": optimizer_tensors(self.model, self.optimizer)}
        if self.averager.ema:
            groups["ema"] = self.averager.ema
        return {name: gather_whole(self.model, tensors, self.ranks) for name, tensors in groups.items()} | {"generators": generators}

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
