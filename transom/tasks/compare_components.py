"""Compares components by training one recipe with each of them, with the same seeds and the same order of samples."""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from transom.checkpoints.run_folder import RunFolder
from transom.config.model_overrides import load_training_recipe
from transom.config.plugins import import_plugins, plugin_component
from transom.config.recipe import Recipe
from transom.config.schema import Schema, allowed_types, kinds
from transom.config.toml_input import parse_override
from transom.errors import ConfigError
from transom.files.atomic_io import write_file
from transom.inspection.pages.line_chart import Line, chart_svg_file, line_chart
from transom.planning.parameters import count_parameters
from transom.tasks.short_runs import check_compared_field, mean_and_std, short_run_overrides
from transom.tasks.train import RunResult, run_training
from transom.training.events import Event, StepFinished
from transom.training.metrics_window import read_metrics_history

LOSS_CHART = "loss.svg"
"""File name of the chart of validation losses."""


class Variant(NamedTuple):
    """A variant to train, which is the base recipe or the base recipe with one field changed.

    Attributes:
        name: name of the base recipe, or the component as the user wrote it, such as ``model.norm=rmsnorm``.
        overrides: the change to the base recipe; empty for the base recipe itself.
    """

    name: str
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The name of the folder that contains the run folders of the variant."""
        return re.sub(r"[^\w.-]+", "-", self.name).strip("-.")

    @property
    def label(self) -> str:
        """The name in the legend of the chart, such as ``norm=rmsnorm`` for ``model.norm=rmsnorm`` or ``Mine`` for ``my_ff.py:Mine``."""
        field, sets, value = self.name.partition("=")
        return f"{field.rpartition('.')[2]}={value}" if sets else self.name.rpartition(":")[2]


@dataclass(frozen=True)
class VariantResult:
    """Results of the runs of a variant, which trains one run per seed.

    Attributes:
        name: name of the variant.
        parameters: number of parameters of the variant's model.
        losses: last validation loss of each run, in nats.
        speeds: median speed of each run, in target tokens per second, or in the unit of the task, such as texts or images.
        curves: step and loss of every validation of each run.
    """

    name: str
    parameters: int
    losses: tuple[float, ...]
    speeds: tuple[float, ...]
    curves: tuple[tuple[tuple[int, float], ...], ...]

    @property
    def mean_curve(self) -> list[tuple[float, float]]:
        """For each validation that all runs reached, its step and the loss averaged over the seeds."""
        return [(points[0][0], statistics.fmean(loss for _, loss in points)) for points in zip(*self.curves, strict=False)]

    def to_json(self, base: "VariantResult") -> dict[str, Any]:
        """Return the results as JSON-serializable data.

        The entry ``difference`` contains, for each seed, the loss of this variant minus the loss of the base recipe with the same seed.

        Args:
            base: results of the base recipe.
        """
        differences = [mine - theirs for mine, theirs in zip(self.losses, base.losses, strict=True)]
        return {
            "name": self.name,
            "parameters": self.parameters,
            "loss": {**mean_and_std(self.losses), "seeds": list(self.losses)},
            "difference": {**mean_and_std(differences), "seeds": differences},
            "speed": {**mean_and_std(self.speeds), "seeds": list(self.speeds)},
            "curve": self.mean_curve,
        }


def build_variants(base: str, overrides: Sequence[str], component: Iterable[str]) -> list[Variant]:
    """Return the base recipe as the first variant, and one further variant per component.

    Args:
        base: name of a packaged recipe, or path of a TOML file.
        overrides: changes to the base recipe that all variants share, in the form of ``--set``.
        component: the components to compare. Each is a field with its value, such as ``model.norm=rmsnorm``, or a plugin class, such as
            ``my_ff.py:Mine``. A plugin class is imported and assigned to the field that accepts it.

    Raises:
        ConfigError: a component has neither form or is given twice, its field is outside of ``model`` and ``training``, or no field accepts
            its class.
    """
    recipe = load_training_recipe(base, overrides)[0]
    variants = [Variant(Path(base).stem), *(_variant(each, recipe) for each in component)]
    folders = [variant.folder for variant in variants]
    if twice := [variant.name for variant in variants if folders.count(variant.folder) > 1]:
        raise ConfigError(f"--with {twice[-1]}: expected each component once, found it twice; remove one")
    return variants


def _variant(component: str, recipe: Recipe) -> Variant:
    if "=" in component:
        check_compared_field(f"--with {component}", ".".join(parse_override(component).path))
        return Variant(component, (component,))
    file, _, name = component.rpartition(":")
    if not file:
        raise ConfigError(
            f"--with {component}: expected FIELD=VALUE or FILE.py:CLASS, found neither; write for example --with model.norm=rmsnorm"
        )
    (plugin,) = import_plugins([file])
    schema = plugin_component(plugin, name)
    if (field := find_field(recipe, schema)) is None:
        raise ConfigError(
            f"--with {component}: expected a component that a field of task '{recipe.task}' accepts, found one that no field accepts;"
            " derive its class from the class of another component"
        )
    return Variant(component, (f"{field}={kinds(schema)[0]}",))


def find_field(recipe: Recipe, schema: type[Schema]) -> str | None:
    """Return the path of the outermost recipe field that accepts a component, such as ``model.norm``; None if no field accepts it."""
    waiting: list[tuple[str, Schema]] = [("", recipe)]
    for place, part in waiting:  # the list grows in the loop
        for name, field in type(part).model_fields.items():
            if schema in allowed_types(field):
                return place + name
            if isinstance(value := getattr(part, name), Schema):
                waiting.append((f"{place}{name}.", value))
    return None


class Comparison:
    """A comparison of several variants of a recipe, each of which is trained with several seeds.

    The run of a variant with seed N is in ``OUT/VARIANT/seed-N``, and the chart of all validation losses is ``OUT/loss.svg``.
    """

    def __init__(self, base: str, overrides: Sequence[str], variants: Sequence[Variant], steps: int, n_seeds: int, out: Path) -> None:
        """Load and validate the recipes of all runs, before the first run starts.

        Args:
            base: name of a packaged recipe, or path of a TOML file.
            overrides: changes to the base recipe that all variants share.
            variants: the variants to train, the base recipe first.
            steps: number of optimizer steps of each run.
            n_seeds: number of runs of each variant.
            out: folder for all runs.

        Raises:
            ConfigError: the component of a variant does not fit the rest of the recipe.
        """
        short = short_run_overrides(load_training_recipe(base, overrides)[0], steps)
        shared = [*overrides, *short]
        self.variants, self.n_seeds, self.steps, self.out = variants, n_seeds, steps, out
        self._recipes = {
            variant: [load_training_recipe(base, [*shared, *variant.overrides, f"training.seed={seed}"]) for seed in self.seeds]
            for variant in variants
        }
        self.unit = self._recipes[variants[0]][0][0].UNIT

    @property
    def seeds(self) -> range:
        """The seeds of the runs of each variant, from 1 to ``n_seeds``."""
        return range(1, self.n_seeds + 1)

    @property
    def n_steps(self) -> int:
        """Total number of optimizer steps of all runs."""
        return self.steps * self.n_seeds * len(self.variants)

    def train(self, resume: bool, notify: Callable[[int, int], None]) -> RunResult | None:
        """Train every variant with the first seed, then every variant with the next seed, and so on.

        In this order, a temporary slowdown of the machine affects all variants.

        Args:
            resume: whether to resume runs whose folders exist.
            notify: progress callback, called with the number of steps done and the total number of steps, both over all runs.

        Returns:
            The result of the run that a signal stopped, or None if all runs are done.
        """
        for done, (seed, variant) in enumerate(product(self.seeds, self.variants)):
            recipe, base, user_overrides = self._recipes[variant][seed - 1]

            def step(event: Event, before: int = done * self.steps) -> None:
                if isinstance(event, StepFinished):
                    notify(before + event.step, self.n_steps)

            result = run_training(recipe, base, self._folder(variant, seed), resume, callbacks=[step], user_overrides=user_overrides)
            if result.exit_code:
                return result
        return None

    def collect_results(self) -> list[VariantResult]:
        """Read the results of all variants from their run folders, and write the chart of validation losses.

        Returns:
            The results of each variant, those of the base recipe first.
        """
        found = [self._variant_result(variant) for variant in self.variants]
        curves = zip([variant.label for variant in self.variants], [each.mean_curve for each in found], strict=True)
        drawn = [Line(label, curve) for label, curve in curves if any(math.isfinite(y) for _, y in curve)]
        if drawn:
            seeds = "one seed" if self.n_seeds == 1 else f"mean of {self.n_seeds} seeds"
            chart = line_chart(f"validation loss in nats, {seeds}", drawn, x_range=(0, self.steps))
            write_file(self.out / LOSS_CHART, chart_svg_file(chart).encode())
        return found

    def _folder(self, variant: Variant, seed: int) -> Path:
        return self.out / variant.folder / f"seed-{seed}"

    def _variant_result(self, variant: Variant) -> VariantResult:
        runs = [RunFolder.open(self._folder(variant, seed)) for seed in self.seeds]
        histories = [read_metrics_history(run.metrics) for run in runs]
        curves = tuple(
            tuple((line["step"], _loss_or_nan(line["loss"])) for line in lines if line["kind"] == "validation") for lines in histories
        )
        speeds = [[line["target_tokens_per_second"] for line in lines if line["kind"] == "train"] for lines in histories]
        return VariantResult(
            variant.name,
            count_parameters(runs[0].load_config()).total,
            tuple(curve[-1][1] for curve in curves),
            tuple(statistics.median(each) for each in speeds),
            curves,
        )


def _loss_or_nan(loss: float | None) -> float:
    """Return a recorded loss. NaN is returned for None, which is how a loss that was not finite is recorded."""
    return math.nan if loss is None else loss
