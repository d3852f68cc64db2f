"""Program of the ranks other than 0: they take the same training steps and hold their shards, but do not validate or write files."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from enum import IntEnum
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from transom.checkpoints.run_files import RECIPE
from transom.checkpoints.run_folder import RunFolder
from transom.config.plugins import import_plugins
from transom.config.recipe import load_recipe
from transom.errors import DataError
from transom.models.build import build_model
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import World
from transom.parallel.processes.launcher import join_as_worker, join_torchrun
from transom.planning.freed_memory import keep_freed_memory, trim_malloc
from transom.planning.precision import choose_precision, choose_threads, rank_device
from transom.training.events import TrainingFinished
from transom.training.finetune import load_base_and_adapt
from transom.training.rank_state import RankState
from transom.training.task_protocol import BuildTask, TaskContext


class Command(IntEnum):
    """Action that rank 0 takes next, and all ranks with it; rank 0 broadcasts it with one number.

    Attributes:
        STEP: a training step; the number is its learning rate.
        AVERAGE: add the weights of a checkpoint to their average; the number is its step.
        VALIDATE: gather the weights to validate; the number is the step.
        SAVE: save a checkpoint; the number is its step.
        END: exit.
    """

    STEP, AVERAGE, VALIDATE, SAVE, END = range(5)


class RankProcess:
    """Training on a rank other than 0: its copy or shard of the model, and its part of each batch."""

    def __init__(self, folder: Path, data: str, read: BuildTask, rank: int) -> None:
        """Build task and model from the run folder that rank 0 has written.

        Args:
            folder: the run folder.
            data: hash of the training and validation data that rank 0 has read.
            read: reads the data and builds the task.
            rank: rank of this process, from 1.

        Raises:
            DataError: the data read by this process has another hash than ``data``.
            ConfigError: a plugin differs from that of rank 0.
        """
        self.folder = RunFolder.open(folder)
        self.folder.require_plugins()
        self.recipe = load_recipe(folder / RECIPE)[0]
        self.layout, self.device = self.recipe.parallel, rank_device()
        context = TaskContext(folder, self.folder, lambda _: None, self.layout.batch_part(rank), self.layout.n_batch_parts)
        self.task = read(self.recipe, context)
        if self.task.data_hash != data:
            raise DataError(f"{folder}: expected the data that rank 0 has read, found changed files; start the run again")
        torch.manual_seed(self.recipe.training.seed)
        self.model = build_model(self.recipe.model).to(self.device).train()
        if (adapter := self.recipe.training.adapter) is not None:
            load_base_and_adapt(self.model, adapter, self.folder)
        torch.manual_seed(int(np.random.SeedSequence([self.recipe.training.seed, rank]).generate_state(1, np.uint64)[0]))

    def run(self, world: World) -> TrainingFinished:
        """Execute the commands of rank 0 until it ends the run; return the result that it sends."""
        dtype = choose_precision(self.recipe.training.precision, self.device).dtype
        ranks = Ranks(world, self.layout, self.device)
        state = RankState(self.recipe, self.model, self.task, dtype, ranks, self.folder.checkpoints)
        with state.checkpoints:
            restored = state.restore()
            return self._follow(state, 0 if restored is None else restored.state.progress.position)

    def _follow(self, state: RankState, position: int) -> TrainingFinished:
        """Execute the commands of rank 0 until it ends the run; return the result that it sends."""
        world = state.ranks.world
        batches = self.task.loader.batches_from(position)
        while True:
            command, number = world.broadcast_scalars(0, 0)
            match Command(int(command)):
                case Command.STEP:
                    state.step(next(batches)[1], number)
                case Command.AVERAGE:
                    state.after_checkpoint(int(number))
                case Command.VALIDATE:
                    state.candidates(int(number))
                case Command.SAVE:
                    state.save(int(number))
                    trim_malloc()
                case Command.END:
                    return TrainingFinished(**json.loads(world.broadcast_text()))


def encode_result(finished: TrainingFinished) -> str:
    """Return the result that rank 0 sends to the other ranks, as JSON."""
    return json.dumps(asdict(finished))


def build_rank(rank: int, folder: str, data: str, task: str, *plugins: str) -> RankProcess:
    """Prepare this process as a rank of a run.

    Args:
        rank: rank of this process, from 1.
        folder: the run folder, which also holds the hashes of the plugins.
        data: hash of the training and validation data that rank 0 has read.
        task: class of the run's task, as ``module:name``.
        *plugins: for each plugin of rank 0, the folder from which it is imported, then its path or module name.
    """
    sys.path.extend(home for home in plugins[::2] if home and home not in sys.path)
    import_plugins(plugins[1::2])
    module, _, name = task.partition(":")
    keep_freed_memory()
    torch.set_num_threads(choose_threads().count)
    return RankProcess(Path(folder), data, getattr(import_module(module), name).read, rank)


def follow_rank_0() -> tuple[Path, TrainingFinished]:
    """Take part in a run as a rank that torchrun has started, until rank 0 ends it; return the run folder and the result."""
    with join_torchrun() as world:
        arguments: Sequence[str] = json.loads(world.broadcast_text())
        return Path(arguments[0]), build_rank(world.rank, *arguments).run(world)


def main(rank: int, n_ranks: int, rendezvous: Path, *arguments: str) -> None:
    """Take part in a run as a rank that rank 0 has started; ``arguments`` are those of ``build_rank``."""
    process = build_rank(rank, *arguments)
    with join_as_worker(rank, n_ranks, rendezvous) as world:
        process.run(world)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
