"""Program of the data-parallel processes other than rank 0: they take the same training steps, but do not validate or write files."""

import sys
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
from transom.parallel.collectives import World
from transom.parallel.launcher import join_as_worker
from transom.planning.freed_memory import FreedMemoryPolicy, keep_freed_memory, trim_malloc
from transom.planning.precision import choose_precision, choose_threads
from transom.training.finetune import load_base_and_adapt
from transom.training.lr_schedule import learning_rate
from transom.training.optimizer import build_optimizer
from transom.training.resume import load_resume_state
from transom.training.task_protocol import BuildTask, TaskContext
from transom.training.train_state import gather_rng_states, load_optimizer, restore_rng_states, trainable_tensors
from transom.training.train_step import TrainStep

NO_CHECKPOINT = -1
"""Value that rank 0 broadcasts in place of a checkpoint's step if the run has no checkpoint."""

STEP, SAVE, END = range(3)
"""Commands that rank 0 broadcasts: take a training step, send the random state for a checkpoint, exit."""


class RankProcess:
    """Training on a rank other than 0: its copies of model and optimizer, and its part of each batch."""

    def __init__(self, folder: Path, data: str, read: BuildTask, rank: int, n_ranks: int) -> None:
        """Build task, model and optimizer from the run folder that rank 0 has written.

        Args:
            folder: the run folder.
            data: hash of the training and validation data that rank 0 has read.
            read: reads the data and builds the task.
            rank: rank of this process, from 1.
            n_ranks: number of data-parallel processes.

        Raises:
            DataError: the data read by this process has another hash than ``data``.
            ConfigError: a plugin differs from that of rank 0.
        """
        self.folder = RunFolder.open(folder)
        self.folder.require_plugins()
        self.recipe = load_recipe(folder / RECIPE)[0]
        self.rank = rank
        self.task = read(self.recipe, TaskContext(folder, self.folder, lambda _: None, rank, n_ranks))
        if self.task.data_hash != data:
            raise DataError(f"{folder}: expected the data that rank 0 has read, found changed files; start the run again")
        torch.manual_seed(self.recipe.training.seed)
        self.model = build_model(self.recipe.model).train()
        if (adapter := self.recipe.training.adapter) is not None:
            load_base_and_adapt(self.model, adapter, self.folder)
        self.dtype = choose_precision(self.recipe.training.precision, torch.device("cpu")).dtype
        self.optimizer = build_optimizer(self.model, self.recipe.training.optimizer, self.dtype)
        torch.manual_seed(int(np.random.SeedSequence([self.recipe.training.seed, rank]).generate_state(1, np.uint64)[0]))

    def run(self, world: World) -> None:
        """Execute the commands of rank 0 until it broadcasts ``END``."""
        training = self.recipe.training
        freed = FreedMemoryPolicy(self.model.device, world.size)
        train_step = TrainStep(self.model, self.optimizer, training, self.dtype, self.task.objective(self.model), world, freed)
        step = position = 0
        if (newest := world.broadcast_scalar()) != NO_CHECKPOINT:
            saved = load_resume_state(self.folder.checkpoints, newest, train_step, self.task)
            load_optimizer(self.model, self.optimizer, saved.optimizer)
            restore_rng_states(saved.generators, self.rank, (training.seed, self.rank, newest))
            train_step.n_splits = saved.state.progress.n_splits
            step, position = saved.state.progress.step, saved.state.progress.position
        world.broadcast(list(trainable_tensors(self.model).values()))
        batches = self.task.loader.batches_from(position)
        while (command := world.broadcast_scalar()) != END:
            if command == STEP:
                step += 1
                micro_batches = next(batches)[1]
                lr = learning_rate(step, training, self.recipe.model.d_model)
                if not train_step.step(micro_batches, lr, sum(map(self.task.flops, micro_batches))).skipped:
                    freed.after_step()
            else:
                gather_rng_states(world)
                trim_malloc()


def main(rank: int, n_ranks: int, rendezvous: Path, folder: Path, data: str, task: str, *plugins: str) -> None:
    """Run one data-parallel process of a training run until rank 0 ends the run.

    Args:
        rank: rank of this process, from 1.
        n_ranks: number of data-parallel processes.
        rendezvous: path of the rendezvous file.
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
    process = RankProcess(folder, data, getattr(import_module(module), name).read, rank, n_ranks)
    with join_as_worker(rank, n_ranks, rendezvous) as world:
        process.run(world)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
