"""State of run folders, read while another process may be training in them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from transom.checkpoints.run_files import CHECKPOINTS, LOCK, METRICS, RECIPE, REPORT, is_run_folder
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import Recipe, load_recipe
from transom.errors import TransomError
from transom.files.file_lock import is_locked
from transom.training.metrics_window import read_metrics_history
from transom.training.validation_metrics import format_metrics

COMPARABLE_METRICS = ("bits_per_byte", "bleu", "accuracy", "micro_f1", "f1", "loss")
"""Metrics that can be compared between runs of different tokenizers, or are easier to judge than a loss, in order of preference."""

MAX_DEPTH = 3
"""Maximum depth of run folders below the folder that is searched."""


@dataclass(frozen=True)
class RunStatus:
    """State of a run.

    Attributes:
        path: the run folder.
        state: "running" while a process trains in the folder, "finished" if the report of its end was written, "stopped" otherwise,
            "damaged" if the folder cannot be read.
        task: task of the recipe.
        data: the training data, as the recipe names them.
        step: last step in ``metrics.jsonl``.
        max_steps: steps of the whole run.
        select_by: name of the metric that selects the saved weights.
        best: metrics of the best validation; empty before the first one.
        loss: last training loss; None before the first line of metrics.
        speed: last logged target tokens (or samples) per second.
        seconds: training time up to the last validation.
        seconds_left: estimated time to the end of a running run; None if unknown.
        n_halved: how often memory ran out and the micro-batches were halved.
        problem: what is wrong with a damaged folder.
    """

    path: Path
    state: Literal["running", "finished", "stopped", "damaged"]
    task: str = ""
    data: str = ""
    step: int = 0
    max_steps: int = 0
    select_by: str = "loss"
    best: dict[str, Any] | None = None
    loss: float | None = None
    speed: float | None = None
    seconds: float | None = None
    seconds_left: float | None = None
    n_halved: int = 0
    problem: str = ""

    @property
    def best_metrics(self) -> str:
        """The metric that selects the saved weights, and the first other one of ``COMPARABLE_METRICS``, of the best validation as text."""
        best = self.best or {}
        others = [key for key in COMPARABLE_METRICS if best.get(key) is not None and key != self.select_by][:1]
        return ", ".join(format_metrics({key: best.get(key) for key in (self.select_by, *others)}))

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders in a folder, itself included, newest first."""

    def search(path: Path, depth: int) -> Iterator[Path]:
        if is_run_folder(path):
            yield path
        elif depth:
            for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    yield from search(Path(entry.path), depth - 1)

    return sorted(search(folder, MAX_DEPTH), key=_changed, reverse=True)


def read_status(path: Path) -> RunStatus:
    """Read the state of a run folder; a folder that cannot be read is described, not an error."""
    try:
        recipe = load_recipe(path / RECIPE)[0]
        records = read_metrics_history(RunFolder(path).metrics)
    except TransomError as error:
        return RunStatus(path, "damaged", problem=str(error))
    trained = [record for record in records if record["kind"] == "train"]
    validated = [record for record in records if record["kind"] == "validation"]
    step = max((int(record["step"]) for record in records), default=0)
    is_running = is_locked(path / LOCK)
    last = validated[-1] if validated else None
    return RunStatus(
        path=path,
        state="running" if is_running else "finished" if _is_finished(path) else "stopped",
        task=recipe.task,
        data=_describe_data(recipe),
        step=step,
        max_steps=_expected_steps(recipe, step, last, is_running),
        select_by=recipe.training.best_checkpoint_metric,
        best=next((record for record in reversed(validated) if record["best"]), None),
        loss=trained[-1]["loss"] if trained else None,
        speed=trained[-1].get("target_tokens_per_second") if trained else None,
        seconds=last["seconds"] if last else None,
        seconds_left=_seconds_left(recipe, step, last) if is_running else None,
        n_halved=sum(record["kind"] == "halved" for record in records),
    )


def _expected_steps(recipe: Recipe, step: int, last: dict[str, Any] | None, is_running: bool) -> int:
    """Return the expected number of steps: those of the recipe, or those that fit into the time limit of the run."""
    training = recipe.training
    if training.max_minutes is None or last is None or not last["step"]:
        return training.max_steps
    seconds = 60 * training.max_minutes
    if not is_running and last["seconds"] >= 0.95 * seconds:
        return step
    return min(training.max_steps, max(step, int(seconds * last["step"] / last["seconds"])))


def _seconds_left(recipe: Recipe, step: int, last: dict[str, Any] | None) -> float | None:
    """Estimate the remaining time from the pace up to the last validation."""
    if last is None or not last["step"]:
        return None
    pace, training = last["seconds"] / last["step"], recipe.training
    left = (training.max_steps - step) * pace
    return left if training.max_minutes is None else max(min(left, 60 * training.max_minutes - step * pace), 0.0)


def _is_finished(path: Path) -> bool:
    """Return whether the report is newer than the metrics: training writes it last."""
    return (path / REPORT).exists() and (path / REPORT).stat().st_mtime >= (path / METRICS).stat().st_mtime


def _describe_data(recipe: Recipe) -> str:
    if (generated := recipe.data.generate) is not None:
        return str(generated.kind)
    if recipe.data.train is not None:
        return ", ".join(Path(name).name for name in recipe.data.train.paths)
    return ", ".join(language.tag for language in getattr(recipe.data, "languages", ()))


def _changed(path: Path) -> float:
    return max(((path / name).stat().st_mtime for name in (METRICS, RECIPE, CHECKPOINTS) if (path / name).exists()), default=0.0)
