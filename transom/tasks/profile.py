"""Profile the training steps of a recipe of any task, without a run folder."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from transom.checkpoints.run_folder import RunFolder
from transom.config.model_overrides import NO_OVERRIDES, UserOverrides
from transom.config.parallel import ParallelConfig
from transom.config.recipe import Recipe
from transom.planning.process_state import environment_defaults, preserved_process_state
from transom.tasks.task import build_training_setup
from transom.training.step_profile import StepProfile, profile_steps

QUIET_PROFILER = {"KINETO_LOG_LEVEL": "99"}
"""Level from which PyTorch's profiler prints lines of its own to standard error; it reads the variable when it first starts."""


def profile_recipe(
    recipe: Recipe,
    base: Path,
    name: str,
    steps: int,
    trace: Path | None = None,
    notify: Callable[[str], None] = lambda _: None,
    user_overrides: UserOverrides = NO_OVERRIDES,
) -> StepProfile:
    """Read the data of a recipe, take training steps from fresh weights in one process, and measure them.

    Args:
        recipe: the recipe; its layout is not used.
        base: folder to which a relative ``data.root`` refers.
        name: name of the recipe, to display.
        steps: number of measured steps.
        trace: file to which a trace of two further steps is written; None for none.
        notify: called with a short description of each stage.
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
        return profile_steps(build_training_setup(recipe, base, run, notify, user_overrides), name, steps, trace, notify)
