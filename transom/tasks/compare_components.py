"""A fair comparison of components: one recipe trained with each, from the same seeds, on the same data in the same order."""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from transom.checkpoints.run_folder import RunFolder
from transom.config.brick import Schema, kinds, members
from transom.config.finetune import load_training
from transom.config.plugins import component_in, import_plugins
from transom.config.reading import parse_override
from transom.config.recipe import Recipe
from transom.errors import ConfigError
from transom.files.durable import write_file
from transom.inspection.curves import Line, chart_file, line_chart
from transom.planning.parameters import count_parameters
from transom.tasks.train import Sitting, run_training
from transom.training.events import Event, Stepped
from transom.training.record import read_history

CURVE = "loss.svg"
"""Name of the picture of the validation losses."""

SAME = ("training.seed", "training.max_steps")
"""Fields that are the same in all runs that are compared."""


class Variant(NamedTuple):
    """What is trained: the base under its name, or the base with one field of another value."""

    name: str
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name as a folder's."""
        return re.sub(r"[^\w.-]+", "-", self.name).strip("-.")

    @property
    def label(self) -> str:
        """The name in a legend: of a field without its table, of a plugin's class without its file."""
        field, sets, value = self.name.partition("=")
        return f"{field.rpartition('.')[2]}={value}" if sets else self.name.rpartition(":")[2]


@dataclass(frozen=True)
class Measured:
    """What the runs of a variant came to, one value per seed.

    Attributes:
        name: of the variant.
        parameters: of its model.
        losses: on the validation data, in nats, after the last step.
        speeds: target tokens (or texts, or images) per second of training, median over the run.
        curves: (step, validation loss) of each run.
    """

    name: str
    parameters: int
    losses: tuple[float, ...]
    speeds: tuple[float, ...]
    curves: tuple[tuple[tuple[int, float], ...], ...]

    @property
    def mean_curve(self) -> list[tuple[float, float]]:
        """The mean over the seeds at each validation that every run has."""
        return [(points[0][0], statistics.fmean(loss for _, loss in points)) for points in zip(*self.curves, strict=False)]

    def to_json(self, base: "Measured") -> dict[str, Any]:
        """Return plain data; the difference is of losses from the base's, seed by seed."""
        differences = [mine - theirs for mine, theirs in zip(self.losses, base.losses, strict=True)]
        return {
            "name": self.name,
            "parameters": self.parameters,
            "loss": {**_spread(self.losses), "seeds": list(self.losses)},
            "difference": {**_spread(differences), "seeds": differences},
            "speed": {**_spread(self.speeds), "seeds": list(self.speeds)},
            "curve": self.mean_curve,
        }


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Return mean and sample standard deviation."""
    return {"mean": statistics.fmean(values), "spread": statistics.stdev(values) if len(values) > 1 else 0.0}


def variants_of(base: str, overrides: Sequence[str], wanted: Iterable[str]) -> list[Variant]:
    """Return the base and a variant for each component that is wanted.

    Args:
        base: name of a packaged recipe, or path of a TOML file.
        overrides: changes to it, which all variants share.
        wanted: ``model.norm=rmsnorm``; or ``my_ff.py:Mine``, a class of a plugin, which is imported and goes into the field that takes it.

    Raises:
        ConfigError: what is wanted is neither, is no part of a model or its training, or is asked for twice.
    """
    recipe = load_training(base, overrides)[0]
    variants = [Variant(Path(base).stem), *(_variant(each, recipe) for each in wanted)]
    folders = [variant.folder for variant in variants]
    if twice := [variant.name for variant in variants if folders.count(variant.folder) > 1]:
        raise ConfigError(f"--with {twice[-1]}: expected components to compare, found it twice; leave one out")
    return variants


def _variant(wanted: str, recipe: Recipe) -> Variant:
    if "=" in wanted:
        path = parse_override(wanted).path
        if path[0] not in ("model", "training") or len(path) < 2 or ".".join(path) in SAME:
            raise ConfigError(f"--with {wanted}: expected a field of model or training, found one that all runs must share; use --set")
        return Variant(wanted, (wanted,))
    file, _, name = wanted.rpartition(":")
    if not file:
        raise ConfigError(f"--with {wanted}: expected FIELD=VALUE or FILE.py:CLASS, found neither; as in --with model.norm=rmsnorm")
    (plugin,) = import_plugins([file])
    schema = component_in(plugin, name)
    if (field := field_of(recipe, schema)) is None:
        raise ConfigError(f"--with {wanted}: expected a component that task '{recipe.task}' has a field for, found none; take another base")
    return Variant(wanted, (f"{field}={kinds(schema)[0]}",))


def field_of(recipe: Recipe, schema: type[Schema]) -> str | None:
    """Return the outermost field of a recipe that takes a component; None if none does."""
    waiting: list[tuple[str, Schema]] = [("", recipe)]
    for place, part in waiting:  # which grows
        for name, field in type(part).model_fields.items():
            if schema in members(field):
                return place + name
            if isinstance(value := getattr(part, name), Schema):
                waiting.append((f"{place}{name}.", value))
    return None


def shortened(recipe: Recipe, steps: int) -> list[str]:
    """Return the overrides by which a comparison of so many steps is made of a recipe: ten validations, and a warmup that fits."""
    warmup = max(recipe.training.schedule.warmup_steps * steps // recipe.training.max_steps, 1)
    return [
        f"training.max_steps={steps}",
        "training.max_minutes=none",
        "training.patience=none",
        f"training.schedule.warmup_steps={min(warmup, recipe.training.schedule.warmup_steps)}",
        f"training.validate_every={max(steps // 10, 1)}",
        f"training.checkpoint_every={steps}",
        f"training.log_every={max(steps // 20, 1)}",
    ]


class Comparison:
    """Runs of one recipe with several components, in a folder: ``FOLDER/VARIANT/seed-N``, and a picture of their losses."""

    def __init__(self, base: str, overrides: Sequence[str], variants: Sequence[Variant], steps: int, n_seeds: int, out: Path) -> None:
        """Check the recipes of all runs before the first one begins.

        Raises:
            ConfigError: a variant does not fit the recipe.
        """
        short = shortened(load_training(base, overrides)[0], steps)
        shared = [*overrides, *short]
        self.variants, self.n_seeds, self.steps, self.out = variants, n_seeds, steps, out
        self._recipes = {
            variant: [load_training(base, [*shared, *variant.overrides, f"training.seed={seed}"]) for seed in self.seeds]
            for variant in variants
        }
        self.counted = self._recipes[variants[0]][0][0].COUNTED

    @property
    def seeds(self) -> range:
        """1 to N."""
        return range(1, self.n_seeds + 1)

    @property
    def n_steps(self) -> int:
        """Steps of all runs together."""
        return self.steps * self.n_seeds * len(self.variants)

    def train(self, resume: bool, tell: Callable[[int, int], None]) -> Sitting | None:
        """Train all runs, seed by seed, so that whatever slows the machine for a while slows every variant.

        Args:
            resume: go on with the runs that are there.
            tell: is told how many steps are done, and of how many.

        Returns:
            What a signal stopped; None if all is done.
        """
        for done, (seed, variant) in enumerate(product(self.seeds, self.variants)):
            recipe, base, asked = self._recipes[variant][seed - 1]

            def step(event: Event, before: int = done * self.steps) -> None:
                if isinstance(event, Stepped):
                    tell(before + event.step, self.n_steps)

            sitting = run_training(recipe, base, self._folder(variant, seed), resume, observers=[step], asked=asked)
            if sitting.stopped_by:
                return sitting
        return None

    def measured(self) -> list[Measured]:
        """Read what the runs came to from their folders, the base first; draw the losses."""
        found = [self._measured(variant) for variant in self.variants]
        curves = zip([variant.label for variant in self.variants], [each.mean_curve for each in found], strict=True)
        drawn = [Line(label, curve) for label, curve in curves if any(math.isfinite(y) for _, y in curve)]
        if drawn:
            seeds = "one seed" if self.n_seeds == 1 else f"mean of {self.n_seeds} seeds"
            write_file(self.out / CURVE, chart_file(line_chart(f"validation loss in nats, {seeds}", drawn)).encode())
        return found

    def _folder(self, variant: Variant, seed: int) -> Path:
        return self.out / variant.folder / f"seed-{seed}"

    def _measured(self, variant: Variant) -> Measured:
        runs = [RunFolder.open(self._folder(variant, seed)) for seed in self.seeds]
        histories = [read_history(run.metrics) for run in runs]
        curves = tuple(
            tuple((line["step"], _number(line["loss"])) for line in lines if line["kind"] == "validation") for lines in histories
        )
        speeds = [[line["target_tokens_per_second"] for line in lines if line["kind"] == "train"] for lines in histories]
        return Measured(
            variant.name,
            count_parameters(runs[0].load_config()).total,
            tuple(curve[-1][1] for curve in curves),
            tuple(statistics.median(each) for each in speeds),
            curves,
        )


def _number(loss: float | None) -> float:
    """Return a loss; one that was not finite is recorded as none."""
    return math.nan if loss is None else loss
