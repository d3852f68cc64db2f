"""A process that shares the batches of a run: it takes the same steps as the first one, and does nothing else."""

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
from transom.parallel.workers import worker
from transom.parallel.world import World
from transom.planning.memory import give_back_freed_memory, keep_freed_memory
from transom.planning.precision import choose_precision, choose_threads
from transom.training.optimizer import build_optimizer
from transom.training.resume import read_run
from transom.training.schedule import learning_rate
from transom.training.start import adapt_base
from transom.training.state import gather_generators, learned_tensors, restore_generators, restore_optimizer
from transom.training.step import Stepper
from transom.training.task import Reader, ReadTask

NOTHING = -1
"""What the first process says in place of a step when there is no checkpoint to go on from."""

STEP, SAVE, END = range(3)
"""What the first process says next to do."""


class Follower:
    """A worker's share of a run: the model, its optimizer, and its rows of every batch."""

    def __init__(self, folder: Path, data: str, read: ReadTask, rank: int, n_ranks: int) -> None:
        """Read recipe, tokenizers and data of the run in ``folder``, as its first process left them; ``read`` makes its task of them.

        Raises:
            DataError: the data are not those whose hash is ``data``.
            ConfigError: a plugin is not the one that the first process has.
        """
        self.folder = RunFolder.open(folder)
        self.folder.require_plugins()
        self.recipe = load_recipe(folder / RECIPE)[0]
        self.rank = rank
        self.task = read(self.recipe, Reader(folder, self.folder, lambda _: None, rank, n_ranks))
        if self.task.data != data:
            raise DataError(f"{folder}: the data changed while the run began; begin again")
        torch.manual_seed(self.recipe.training.seed)
        self.model = build_model(self.recipe.model).train()
        if (adapter := self.recipe.training.adapter) is not None:
            adapt_base(self.model, adapter, self.folder)
        self.dtype = choose_precision(self.recipe.training.precision, torch.device("cpu")).dtype
        self.optimizer = build_optimizer(self.model, self.recipe.training.optimizer, self.dtype)
        torch.manual_seed(int(np.random.SeedSequence([self.recipe.training.seed, rank]).generate_state(1, np.uint64)[0]))

    def follow(self, world: World) -> None:
        """Do what the first process says until it says that this is the end."""
        training = self.recipe.training
        stepper = Stepper(self.model, self.optimizer, training, self.dtype, self.task.objective(self.model), world)
        step = position = 0
        if (newest := world.from_first()) != NOTHING:
            saved = read_run(self.folder.checkpoints, newest, stepper, self.task)
            restore_optimizer(self.model, self.optimizer, saved.optimizer)
            restore_generators(saved.generators, self.rank)
            step, position = saved.state.progress.step, saved.state.progress.position
        world.copied(list(learned_tensors(self.model).values()))
        batches = self.task.loader.batches_from(position)
        while (said := world.from_first()) != END:
            if said == STEP:
                step += 1
                slices = next(batches)[1]
                rate = learning_rate(step, training, self.recipe.model.d_model)
                stepper.step(slices, rate, sum(map(self.task.flops, slices)))
            else:
                gather_generators(world)
                give_back_freed_memory()


def main(rank: int, n_ranks: int, meeting: Path, folder: Path, data: str, task: str, *plugins: str) -> None:
    """Be one of a run's workers; ``task`` is the class of its task, as ``module:name``.

    The first process names the plugins that it uses, each behind the folder that it is found from. The run's folder has their hashes, and
    refuses one that has changed meanwhile.
    """
    sys.path.extend(home for home in plugins[::2] if home and home not in sys.path)
    import_plugins(plugins[1::2])
    module, _, name = task.partition(":")
    keep_freed_memory()
    torch.set_num_threads(choose_threads().count)
    follower = Follower(folder, data, getattr(import_module(module), name).read, rank, n_ranks)
    with worker(rank, n_ranks, meeting) as world:
        follower.follow(world)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
