"""Searches over fields of a recipe by successive halving: ``transom sweep``."""

import math
import tomllib
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from transom.checkpoints.metrics_log import replace_non_finite
from transom.checkpoints.run_files import CHECKPOINTS, CONFIG, METRICS, RECIPE, RESULT
from transom.checkpoints.run_folder import RunFolder
from transom.config.model_overrides import UserOverrides, load_training_recipe
from transom.config.recipe import Metric, Recipe, dump_recipe, load_recipe
from transom.data.reports.findings import count_noun
from transom.errors import CheckpointError, ConfigError, DivergedError
from transom.exchange.config_rows import flatten
from transom.files.atomic_io import FORMAT_VERSION, json_bytes, make_folder, write_file
from transom.files.limits import MAX_CONFIG_BYTES
from transom.files.safe_read import read_json
from transom.inspection.plots.sweep import SweepPoint
from transom.tasks.short_runs import SHARED_FIELDS, mean_and_std, short_run_overrides
from transom.tasks.sweep_space import Configuration, draw_configurations, parse_axes
from transom.tasks.train import RunResult, run_training
from transom.training.checkpoint_selection import lower_is_better
from transom.training.events import Event, StepFinished
from transom.training.metrics_window import read_metrics_history
from transom.training.successive_halving import Halving, halve, plan_rungs
from transom.training.validation_metrics import all_metrics

STATE, RESULTS, BEST = "sweep.json", "results.json", "best.toml"
"""Files of a sweep: the command and the runs that diverged, the results, and the recipe with the best values."""

LoadedRecipe = tuple[Recipe, Path, UserOverrides]

WARMUP = "training.schedule.warmup_steps"


class _StoppedError(Exception):
    """A signal has stopped a run.

    Attributes:
        result: the result of this run.
    """

    def __init__(self, result: RunResult) -> None:
        self.result = result


class SweepRow(NamedTuple):
    """Result of one configuration.

    Attributes:
        configuration: the configuration.
        rung: number of the last rung that it reached, from 1.
        steps: steps of its runs.
        metrics: validation metric of each seed's run, at the best validation; NaN if it diverged.
        seconds: training time of its runs up to their last validation.
        diverged: why a run counts as diverged; empty if none does.
    """

    configuration: Configuration
    rung: int
    steps: int
    metrics: tuple[float, ...]
    seconds: float
    diverged: str

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-serializable data."""
        values = {"values": dict(self.configuration.values), "folder": self.configuration.folder}
        metric = {**mean_and_std(self.metrics), "seeds": list(self.metrics)}
        return {**values, "rung": self.rung, "steps": self.steps, "metric": metric, "seconds": self.seconds, "diverged": self.diverged}


class Sweep:
    """A search over fields of a recipe. Each configuration is trained with several seeds, and compared by the mean of their metrics.

    The run of a configuration with seed N is in ``OUT/config-01/seed-N``. It is continued from rung to rung, and its learning-rate schedule
    is that of all steps. Configurations are selected by ``training.best_checkpoint_metric`` on validation data only.

    Attributes:
        axes: the fields, with their ranges or lists.
        n_trained: number of times that ``train`` has started or continued a run; 0 if all runs were finished before.
    """

    def __init__(
        self, base: str, overrides: Sequence[str], over: Sequence[str], n_runs: int, n_seeds: int, steps: int | None, out: Path
    ) -> None:
        """Load and validate the recipes of all runs, before the first run starts.

        Args:
            base: name of a packaged recipe, or path of a TOML file.
            overrides: changes to the recipe that all configurations share.
            over: fields with their ranges or lists, in the form of ``--over``.
            n_runs: number of configurations.
            n_seeds: number of runs of each configuration.
            steps: steps of a whole run, for which the warmup is shortened in proportion; None for those of the recipe.
            out: folder of the sweep.

        Raises:
            ConfigError: a field or its values are invalid, or there are fewer steps than the rungs need.
        """
        self.recipe, self.n_runs, self.n_seeds, self.out = load_training_recipe(base, overrides)[0], n_runs, n_seeds, out
        self.steps = steps or self.recipe.training.max_steps
        short = short_run_overrides(self.recipe, self.steps)
        fields = [override.partition("=")[0] for override in short]
        shared = [*SHARED_FIELDS, *(field for field in fields if field != WARMUP), "training.best_checkpoint_metric"]
        self.axes = parse_axes(base, overrides, over, shared)
        self.configurations = draw_configurations(self.axes, n_runs, self.recipe.training.seed)
        self.rungs = plan_rungs(len(self.configurations), self.steps)
        all_shared = [*overrides, *short, f"training.validate_every={self.rungs[0].steps}"]
        self._recipes = [[_load(base, all_shared, each, f"training.seed={seed}") for seed in self.seeds] for each in self.configurations]
        self._command = {
            "recipe": dump_recipe(self.recipe),
            "over": list(over),
            "runs": n_runs,
            "seeds": n_seeds,
            "steps": self.steps,
        }
        self._diverged: dict[str, dict[str, Any]] = {}
        self._halving: Halving | None = None
        self.n_trained = 0
        self._progress = _SweepProgress(self._n_steps(len(self.rungs)))

    @property
    def seeds(self) -> range:
        """The seeds of the runs of each configuration, from 1 to ``n_seeds``."""
        return range(1, self.n_seeds + 1)

    @property
    def notes(self) -> list[str]:
        """Sentences on the plan of the sweep."""
        rungs = ", ".join(f"{rung.size} to step {rung.steps:,}" for rung in self.rungs)
        seeds = "one seed" if self.n_seeds == 1 else f"{self.n_seeds} seeds each"
        notes = [f"{count_noun(len(self.configurations), 'configuration')} with {seeds}, in {count_noun(len(self.rungs), 'rung')}: {rungs}"]
        if len(self.configurations) < self.n_runs:
            notes.append(f"only {len(self.configurations)} of {self.n_runs} configurations differ")
        warmup = max(recipe.training.schedule.warmup_steps for ((recipe, _, _), *_) in self._recipes)
        if self.rungs[0].steps <= warmup and len(self.rungs) > 1:
            notes.append(
                f"the first rung ends within the {warmup:,} steps of warmup, where learning rates differ little; raise --steps, or lower"
                " --runs"
            )
        return notes

    def train(self, notify: Callable[[int, int], None]) -> RunResult | None:
        """Train rung by rung, or continue; runs that are finished are not repeated.

        Args:
            notify: progress callback, called with the number of steps done and the total number, both from now on.

        Returns:
            The result of the run that a signal stopped, or None if the sweep is done.

        Raises:
            ConfigError: the folder holds another sweep or other files.
        """
        self._open()
        self._progress.notify = notify
        try:
            self._halving = halve(self.rungs, self._train_rung)
        except _StoppedError as stopped:
            return stopped.result
        return None

    def _open(self) -> None:
        """Write the command into a new folder, or check that the folder holds a sweep with the same command.

        A sweep of which no run has a checkpoint or result has nothing to continue, and its folder is used as a new one.
        """
        path = self.out / STATE
        if not path.exists():
            if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
                raise ConfigError(
                    f"{self.out}: expected a new or empty folder, or a sweep to continue, found other files; give another --out"
                )
            make_folder(self.out)
            self._save_state()
            return
        command, diverged = _read_state(path)
        differs = next((name for name, value in self._command.items() if command.get(name) != value), None)
        if differs is None:
            self._diverged = diverged
        elif diverged or any(self.out.glob(f"config-*/seed-*/{RESULT}")) or any(self.out.glob(f"config-*/seed-*/{CHECKPOINTS}/*")):
            expected, found = _describe_difference(differs, command.get(differs), self._command[differs])
            raise ConfigError(
                f"{self.out}: expected the command of the sweep in this folder with {expected}, found {found}; repeat that command, or give"
                " another --out"
            )
        else:
            for folder in self.out.glob("config-*/seed-*"):
                RunFolder.create(folder, overwrite=True).close()
            self._save_state()

    def _save_state(self) -> None:
        write_file(self.out / STATE, json_bytes({"format_version": FORMAT_VERSION, "command": self._command, "diverged": self._diverged}))

    def _train_rung(self, rung: int, numbers: Sequence[int]) -> dict[int, float]:
        """Train configurations up to the end of a rung; return their scores, of which lower is better."""
        for seed, number in product(self.seeds, numbers):
            if not self._reason(number, rung):
                self._continue_run(number, seed, rung)
        self._progress.done = self._n_steps(rung + 1)
        return {number: self._score(number, rung) for number in numbers}

    def _score(self, number: int, rung: int) -> float:
        mean = mean_and_std(self._metrics(number, rung))["mean"]
        return math.inf if math.isnan(mean) else mean if lower_is_better(self.select_by) else -mean

    def _continue_run(self, number: int, seed: int, rung: int) -> None:
        """Train one run up to the end of a rung, and note if it has diverged."""
        before, target = self.rungs[rung - 1].steps if rung else 0, self.rungs[rung].steps
        folder, progress = self._folder(number, seed), self._progress
        progress.step = before
        if self._is_done(folder, target):
            progress.skipped += target - before
        else:
            recipe, base, user_overrides = self._recipes[number][seed - 1]
            pauses = target < self.steps

            def watch(event: Event) -> None:
                if isinstance(event, StepFinished):
                    progress.after_step(event.step - before, event.step)

            def should_stop() -> bool:
                return pauses and progress.step >= target

            self.n_trained += 1
            try:
                result = run_training(recipe, base, folder, True, False, [watch], user_overrides=user_overrides, should_stop=should_stop)
            except DivergedError as error:
                self._note_divergence(folder, rung, str(error))
                return
            if result.exit_code:
                raise _StoppedError(result)
        progress.done += target - before
        if math.isnan(self._metric(folder, target)):
            self._note_divergence(folder, rung, f"expected a finite validation loss at step {target:,}, found none")

    def _is_done(self, folder: Path, target: int) -> bool:
        """Return whether a run has reached a step, and if it is its last step, has written its result."""
        if not (folder / CONFIG).exists() or (target == self.steps and not (folder / RESULT).exists()):
            return False
        return max(RunFolder.open(folder).checkpoints.steps(), default=0) >= target

    def _note_divergence(self, folder: Path, rung: int, reason: str) -> None:
        self._diverged[self._name(folder)] = {"rung": rung, "reason": reason}
        self._save_state()

    def _reason(self, number: int, rung: int) -> str:
        """Return why a configuration has diverged up to the end of a rung; empty if it has not."""
        names = [self._name(self._folder(number, seed)) for seed in self.seeds]
        found = [(name, note) for name in names if (note := self._diverged.get(name)) is not None and note["rung"] <= rung]
        return f"{found[0][0]}: {found[0][1]['reason']}" if found else ""

    def _metrics(self, number: int, rung: int) -> list[float]:
        """Return the metric of each seed's run up to the end of a rung; NaN if the configuration has diverged."""
        if self._reason(number, rung):
            return [math.nan] * self.n_seeds
        return [self._metric(self._folder(number, seed), self.rungs[rung].steps) for seed in self.seeds]

    def _metric(self, folder: Path, target: int) -> float:
        """Return the metric of the weights that a run has kept up to a step, or NaN if its last loss up to that step is not finite.

        Raises:
            CheckpointError: the run has reached the step, but a validation is missing in its ``metrics.jsonl``.
        """
        lines = _validations(folder, target)
        first = self.rungs[0].steps
        if missing := {*range(first, target, first), target} - {line["step"] for line in lines}:
            raise CheckpointError(
                f"{folder / METRICS}: expected the validation at step {min(missing):,}, found none; delete folder {folder} to train it"
                " again"
            )
        kept = [line for line in lines if line["best"]]
        if not kept or lines[-1]["loss"] is None or kept[-1].get(self.select_by) is None:
            return math.nan
        return float(kept[-1][self.select_by])

    @cached_property
    def select_by(self) -> str:
        """Name of the validation metric by which runs are selected, as in the recipes of the runs."""
        return load_recipe(self._folder(self.configurations[0].number, 1) / RECIPE)[0].training.best_checkpoint_metric

    @property
    def metric(self) -> Metric:
        """The metric with its name, digits and unit."""
        key = self.select_by
        return next((metric for metric in all_metrics() if metric.key == key), Metric(key, key, 4))

    @property
    def rows(self) -> list[SweepRow]:
        """The results of all configurations, the best first."""
        assert self._halving is not None, "the sweep is done"
        rows = []
        for number in self._halving.ranking:
            rung = max(index for index, scores in enumerate(self._halving.scores) if number in scores)
            steps = self.rungs[rung].steps
            seconds = sum(_seconds(self._folder(number, seed), steps) for seed in self.seeds)
            metrics = tuple(self._metrics(number, rung))
            rows.append(SweepRow(self.configurations[number], rung + 1, steps, metrics, seconds, self._reason(number, rung)))
        return rows

    @property
    def points(self) -> list[SweepPoint]:
        """The mean metric of each configuration at the end of each rung that it reached."""
        assert self._halving is not None, "the sweep is done"
        return [
            SweepPoint(number + 1, self.configurations[number].values, rung + 1, self.rungs[rung].steps, mean_and_std(metrics)["mean"])
            for rung, scores in enumerate(self._halving.scores)
            for number in sorted(scores)
            for metrics in [self._metrics(number, rung)]
        ]

    def write_results(self) -> dict[str, Any]:
        """Write the results, and the recipe with the best values unless all configurations diverged; return the results as JSON values."""
        rows = self.rows
        best = None if rows[0].diverged else rows[0].configuration
        value = {
            "metric": self.select_by,
            "rungs": [{"size": rung.size, "steps": rung.steps} for rung in self.rungs],
            "seeds": self.n_seeds,
            "configurations": [row.to_json() for row in rows],
            "best": None if best is None else best.overrides,
            "folder": str(self.out),
        }
        write_file(self.out / RESULTS, json_bytes({"format_version": FORMAT_VERSION, **replace_non_finite(value)}))
        if best is not None:
            write_file(self.out / BEST, dump_recipe(self.best_recipe(best)).encode())
        return value

    def best_recipe(self, best: Configuration) -> Recipe:
        """Return the recipe of a configuration's runs with the steps, intervals, seed and choices by machine of the recipe that was swept.

        Sizes that follow from the data are left out, so that other data can be trained on.
        """
        trained, original = load_recipe(self._folder(best.number, 1) / RECIPE)[0], self.recipe
        fields = {name: getattr(original.training, name) for name in _RESTORED}
        schedule = trained.training.schedule
        if WARMUP not in best.values:
            schedule = schedule.model_copy(update={"warmup_steps": original.training.schedule.warmup_steps})
        trained = trained.with_fields("training", **fields, schedule=schedule)
        if original.training.init_from is not None:
            return trained
        sizes = (*original.model.VOCABULARIES, *original.model.FROM_DATA)
        return trained.with_fields("model", **{name: getattr(original.model, name) for name in sizes if hasattr(trained.model, name)})

    def _n_steps(self, n_rungs: int) -> int:
        """Return the number of optimizer steps of the first rungs, if no run diverges."""
        ends = [0, *(rung.steps for rung in self.rungs)]
        return self.n_seeds * sum(rung.size * (rung.steps - start) for rung, start in zip(self.rungs[:n_rungs], ends, strict=False))

    def _folder(self, number: int, seed: int) -> Path:
        return self.out / self.configurations[number].folder / f"seed-{seed}"

    def _name(self, folder: Path) -> str:
        return folder.relative_to(self.out).as_posix()


_RESTORED = (
    *("max_steps", "max_minutes", "patience", "validate_every", "checkpoint_every", "log_every"),
    *("seed", "precision", "compile"),
)
"""Training fields that a sweep sets, or that its runs choose."""


class _SweepProgress:
    """Counts optimizer steps of a sweep; those of runs that an earlier command has trained are left out.

    Attributes:
        total: steps of the whole sweep.
        done: steps of the finished parts.
        skipped: steps of the parts that were finished before.
        step: the last step of the run that is training.
        notify: called with the number of steps done and their total number.
    """

    def __init__(self, total: int) -> None:
        self.total, self.done, self.skipped, self.step = total, 0, 0, 0
        self.notify: Callable[[int, int], None] = lambda done, total: None

    def after_step(self, of_part: int, step: int) -> None:
        """Count a step of the part of a run that is training."""
        self.step = step
        self.notify(self.done + of_part - self.skipped, self.total - self.skipped)


def _load(base: str, shared: Sequence[str], configuration: Configuration, seed: str) -> LoadedRecipe:
    """Load the recipe of one run; an error in a value names ``--over``."""
    try:
        return load_training_recipe(base, [*shared, *configuration.overrides, seed])
    except ConfigError as error:
        message = str(error)
        for override in configuration.overrides:
            message = message.replace(f"--set {override}:", f"--over {override}:")
        raise ConfigError(message) from None


def _read_state(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Read the command of a sweep, and the runs that diverged.

    Raises:
        CheckpointError: the file is damaged or is not that of a sweep.
    """
    remedy = f"give another --out, or delete {path.parent} to start anew"
    try:
        state = read_json(path, MAX_CONFIG_BYTES)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {remedy}") from error
    command, diverged = state.get("command"), state.get("diverged")
    if not isinstance(command, dict) or not isinstance(diverged, dict) or not all(map(_is_divergence, diverged.values())):
        raise CheckpointError(f"{path}: expected the state of a sweep, found something else; {remedy}")
    return command, diverged


def _describe_difference(name: str, old: Any, new: Any) -> tuple[str, str]:
    """Return a part of two commands in which they differ, as options."""
    if name != "recipe":
        return f"--{name} {_written(old)}", f"--{name} {_written(new)}"
    before, after = _fields(str(old)), _fields(new)
    field = next((field for field in [*after, *before] if before.get(field) != after.get(field)), "")
    return f"{field} = {before.get(field, 'none')}", f"{field} = {after.get(field, 'none')}"


def _fields(recipe: str) -> dict[str, Any]:
    """Return the values of a recipe in TOML by dotted name; empty if it is damaged."""
    try:
        return flatten(tomllib.loads(recipe))
    except tomllib.TOMLDecodeError:
        return {}


def _is_divergence(value: Any) -> bool:
    """Return whether a JSON value says in which rung a run has diverged, and why."""
    return isinstance(value, dict) and isinstance(value.get("rung"), int) and isinstance(value.get("reason"), str)


def _validations(folder: Path, target: int) -> list[dict[str, Any]]:
    """Return the validations of a run up to a step; empty if there is no run."""
    if not (folder / CONFIG).exists():
        return []
    lines = read_metrics_history(RunFolder.open(folder).metrics)
    return [line for line in lines if line["kind"] == "validation" and line["step"] <= target]


def _seconds(folder: Path, target: int) -> float:
    """Return the training time of a run up to its last validation before or at a step."""
    lines = _validations(folder, target)
    return float(lines[-1]["seconds"]) if lines else 0.0


def _written(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
