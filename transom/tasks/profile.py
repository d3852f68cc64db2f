"""Profile the training steps of a recipe of any task, without a run folder."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from transom.checkpoints.run_folder import RunFolder
from transom.config.model_overrides import NO_OVERRIDES, UserOverrides
from transom.config.parallel import ParallelConfig
from transom.config.recipe import Recipe
from transom.planning.process_state import environment_defaults, preserved_process_state
from transom.tasks.task import build_training_setup
from transom.training.step_profile import WARM_UP_STEPS, StepBench

QUIET_PROFILER = {"KINETO_LOG_LEVEL": "99"}
"""Level from which PyTorch's profiler prints lines of its own to standard error; it reads the variable when it first starts."""


@contextmanager
def fresh_bench(
    recipe: Recipe,
    base: Path,
    name: str,
    notify: Callable[[str], None] = lambda _: None,
    user_overrides: UserOverrides = NO_OVERRIDES,
) -> Iterator[StepBench]:
    """Read the data of a recipe, take the first training steps from fresh weights in one process, and yield what takes further ones.

    Args:
        recipe: the recipe; its layout is not used.
        base: folder to which a relative ``data.root`` refers.
        name: name of the recipe, to display.
        notify: called with a short description of each stage, and with the notes on the run that training prints.
        user_overrides: fields set by the user.

    Raises:
        TransomError: the recipe does not fit the data.
    """
    if recipe.parallel.n_processes > 1:
        notify(f"the steps of one process are profiled, which takes the whole batch of {recipe.parallel.n_processes} processes")
        recipe = recipe.model_copy(update={"parallel": ParallelConfig()})
    with (
        tempfile.TemporaryDirectory() as folder,
        preserved_process_state(),
        environment_defaults(QUIET_PROFILER),
        RunFolder.create(Path(folder) / "run") as run,
    ):
        setup = build_training_setup(recipe, base, run, lambda what: notify(f"{what} ..."), user_overrides)
        for note in setup.notes:
            notify(note)
        notify(f"warming up: {WARM_UP_STEPS} steps ...")
        yield StepBench(setup, name)
