"""Find a learning rate for a recipe by a range test of its fresh model: ``transom find-lr``."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from transom.checkpoints.run_folder import RunFolder
from transom.config.model_overrides import NO_OVERRIDES, UserOverrides
from transom.config.parallel import ParallelConfig
from transom.config.recipe import Recipe
from transom.parallel.mesh import Ranks
from transom.parallel.processes.collectives import SINGLE_PROCESS
from transom.planning.precision import num_threads_set_to
from transom.planning.process_state import preserved_process_state
from transom.tasks.task import build_training_setup
from transom.training.lr_schedule import lr_factor, peak_learning_rate, warmup_notes
from transom.training.rank_state import RankState


@contextmanager
def fresh_model_steps(
    recipe: Recipe, base: Path, user_overrides: UserOverrides = NO_OVERRIDES, show_status: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[Callable[[float], float], list[str]]]:
    """Build the fresh model of a recipe, and take steps at rates that the caller chooses; keep nothing of it.

    Optimizer, data, batch, precision and clipping are those of training. The tokenizers of the recipe are trained in a temporary folder. If
    the recipe has several processes, one process computes their whole batch.

    The context manager yields a function that takes a step at a learning rate and returns the loss of its batch before the update, NaN if
    the step was skipped; and lines on what the schedule of the recipe makes of ``training.learning_rate``.

    Args:
        recipe: the recipe.
        base: folder that a relative ``data.root`` is resolved against.
        user_overrides: fields of the recipe that the user has set, from ``load_training_recipe``.
        show_status: called with a short description of each stage of the setup.

    Raises:
        TransomError: the recipe does not fit the data.
    """
    n_parts = recipe.parallel.n_batch_parts
    recipe = recipe.model_copy(update={"parallel": ParallelConfig()})
    recipe = recipe.with_fields("training", grad_accum_steps=n_parts * recipe.training.grad_accum_steps)
    with TemporaryDirectory(prefix="transom-find-lr-") as place, RunFolder.create(Path(place)) as folder, preserved_process_state():
        setup = build_training_setup(recipe, base, folder, show_status, user_overrides, saves=False)
        with num_threads_set_to(setup.processes.threads):
            ranks = Ranks(SINGLE_PROCESS, setup.recipe.parallel, setup.model.device)
            rank = RankState(setup.recipe, setup.model.train(), setup.task, setup.precision.dtype, ranks, folder.checkpoints)
            batches = setup.task.loader.batches_from(0)

            def train_step(rate: float) -> float:
                result = rank.step(next(batches)[1], rate)
                return math.nan if result.skipped else result.loss / result.n_target_tokens

            yield train_step, describe_schedule(setup.recipe)


def describe_schedule(recipe: Recipe) -> list[str]:
    """Describe what the schedule of a recipe makes of ``training.learning_rate``."""
    training, d_model = recipe.training, recipe.model.d_model
    schedule, steps = training.schedule, training.max_steps
    rise = f"reached after {schedule.warmup_steps:,} steps of warmup" if schedule.warmup_steps else "from the first step"
    lines = [
        f"training.learning_rate is the peak of the recipe's schedule {schedule.kind}, {rise}; at step {steps:,}, the last, the rate is"
        f" {lr_factor(steps, schedule, steps):.2g} times as high"
    ]
    if training.learning_rate == "noam":
        lines.append(
            f'the recipe has training.learning_rate = "noam", a peak of {peak_learning_rate(training, d_model):.2g} computed from'
            " model.d_model and warmup_steps, which the line below replaces"
        )
    return [*lines, *warmup_notes(training)]
