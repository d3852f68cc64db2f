"""Parts of commands that train one recipe in several ways: short runs, fields that may differ, and figures over seeds."""

import math
import statistics
from collections.abc import Collection, Sequence

from transom.config.recipe import Recipe
from transom.config.toml_input import OptionOverride
from transom.errors import ConfigError

SHARED_FIELDS = ("training.seed", "training.max_steps")
"""Recipe fields in which compared runs must not differ."""


def check_compared_field(option: str, field: str, shared: Collection[str] = SHARED_FIELDS) -> None:
    """Check that compared runs may differ in a recipe field.

    Args:
        option: the option with its value, for the message.
        field: dotted name of the field.
        shared: fields that all runs share.

    Raises:
        ConfigError: the field is outside of ``model`` and ``training``, or all runs share it.
    """
    if field.partition(".")[0] not in ("model", "training") or "." not in field or field in shared:
        raise ConfigError(f"{option}: expected a field of model or training, found one that all runs share; set it with --set")


def short_run_overrides(recipe: Recipe, steps: int) -> list[str]:
    """Return the overrides that shorten a training run to ``steps`` optimizer steps.

    The learning rate warmup is shortened in proportion, and the run validates about ten times. The time limit and early stopping are
    disabled. Errors name ``--steps``.
    """
    warmup = max(recipe.training.schedule.warmup_steps * steps // recipe.training.max_steps, 1)
    short = [
        f"training.max_steps={steps}",
        "training.max_minutes=none",
        "training.patience=none",
        f"training.schedule.warmup_steps={min(warmup, recipe.training.schedule.warmup_steps)}",
        f"training.validate_every={max(steps // 10, 1)}",
        f"training.checkpoint_every={steps}",
        f"training.log_every={max(steps // 20, 1)}",
    ]
    return [OptionOverride(override, f"--steps {steps}") for override in short]


def mean_and_std(values: Sequence[float]) -> dict[str, float]:
    """Return the mean and the sample standard deviation of some values. The standard deviation of a single value is NaN."""
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else math.nan}
