"""Averages the checkpoints of a run into a new run folder, and compares the average with the run's weights on validation data."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from transom.checkpoints.averaging import average_tensors
from transom.checkpoints.output_paths import check_run_folder_is_no_input
from transom.checkpoints.run_files import FILES, INPUT_PROFILE, METRICS, RECIPE, TOKENIZER, WEIGHTS, contains_run
from transom.checkpoints.run_folder import RunFolder
from transom.config.recipe import dump_recipe, load_recipe
from transom.errors import CheckpointError, ConfigError
from transom.files.atomic_io import remove
from transom.models.apply_lora import merge_lora
from transom.models.build import build_model
from transom.planning.precision import num_threads_set_to
from transom.planning.process_state import preserved_process_state
from transom.tasks.run_pages import write_run_pages
from transom.tasks.task import build_training_setup
from transom.training.events import TrainingFinished
from transom.training.finetune import load_base_and_adapt
from transom.training.metrics_window import read_metrics_history
from transom.training.setup import TrainingSetup
from transom.training.train_state import load_trainable, trainable_tensors


class AverageResult(NamedTuple):
    """Result of averaging checkpoints.

    Attributes:
        folder: the new run folder, with the average as its weights.
        steps: steps of the averaged checkpoints, ascending.
        average: validation metrics of the average.
        last: validation metrics of the newest averaged checkpoint.
        run: validation metrics of the run's own weights; None if the run has none yet.
    """

    folder: Path
    steps: tuple[int, ...]
    average: Mapping[str, float]
    last: Mapping[str, float]
    run: Mapping[str, float] | None

    @property
    def is_worse(self) -> bool:
        """Whether the average has a higher validation loss than the run's own weights, or than the newest checkpoint without these."""
        return not self.average["loss"] <= (self.last if self.run is None else self.run)["loss"]

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-serializable data."""
        return {**self._asdict(), "folder": str(self.folder), "steps": list(self.steps), "worse": self.is_worse}


def choose_steps(run: RunFolder, last: int | None = None, chosen: Sequence[int] = ()) -> list[int]:
    """Return the steps of the checkpoints to average, ascending.

    Args:
        run: the run.
        last: number of checkpoints, counted from the newest one; by default all that the run has kept.
        chosen: steps of the checkpoints, in place of ``last``.

    Raises:
        CheckpointError: the run has kept fewer checkpoints, or not these.
    """
    kept = run.checkpoints.steps()
    found = f"found {len(kept)}" + (f" ({', '.join(f'step-{step}' for step in kept)})" if kept else "")
    more = "training.keep_checkpoints sets how many a run keeps"
    if missing := [step for step in chosen if step not in kept]:
        raise CheckpointError(f"{run.path}: expected the checkpoint step-{missing[0]}, {found}; name kept ones; {more}")
    steps = sorted({*chosen}) if chosen else kept if last is None else kept[-last:]
    if len(steps) < max(2, last or 0):
        wanted = f"{max(2, last or 0)} checkpoints to average"
        if chosen:
            raise CheckpointError(f"{run.path}: expected at least {wanted}, found {len(steps)} named; name more")
        raise CheckpointError(f"{run.path}: expected at least {wanted}, {found}; average fewer, or train a run that keeps more: {more}")
    return steps


def average_checkpoints(
    run: Path, out: Path, last: int | None = None, chosen: Sequence[int] = (), notify: Callable[[str], None] = lambda _: None
) -> AverageResult:
    """Write a run folder whose weights are the mean of the weights of several checkpoints of a run. The run itself is only read.

    The new folder has the run's recipe, tokenizers and metrics, a run id of its own, a validation of the average, and no checkpoints. If
    the run trained an adapter, its matrices are averaged, as in training, and merged into the weights.

    Args:
        run: the run folder.
        out: the new run folder.
        last: number of checkpoints, counted from the newest one; by default all that the run has kept.
        chosen: steps of the checkpoints, in place of ``last``.
        notify: called with a short description of each stage.

    Raises:
        CheckpointError: the run has kept fewer checkpoints, or not these, or one is damaged.
        ConfigError: ``out`` holds a run or other files.
    """
    source = RunFolder.open(run)
    steps = choose_steps(source, last, chosen)
    if contains_run(out):
        raise ConfigError(f"{out}: expected a new folder, found a run; give another --out")
    source.require_plugins()
    recipe, base = load_recipe(run / RECIPE)
    check_run_folder_is_no_input(recipe, base, out)
    whole = recipe.with_fields("training", init_from=None, adapter=None)  # the average is a complete model
    with _new_run(out) as folder, preserved_process_state():
        folder.write(RECIPE, dump_recipe(whole).encode())
        for name in (TOKENIZER, INPUT_PROFILE, METRICS):
            if (run / name).exists():
                folder.write(name, source.read(name))
        folder.write_config(whole.model, _run_id(source, steps))
        setup = build_training_setup(whole, base, folder, notify)
        notify(f"averaging {len(steps)} checkpoints")
        average, newest = _merged_weights(source, recipe, steps)
        notify("evaluating on validation data")
        before = _evaluate(setup, source.read_weights(WEIGHTS)) if (run / WEIGHTS).exists() else None
        result = AverageResult(out, tuple(steps), {}, _evaluate(setup, newest), before)
        result = result._replace(average=_evaluate(setup, average))
        finished = _write_average(setup, result)
        folder.write_average(str(run.resolve()), steps)
        write_run_pages(setup, finished)
    return result._replace(average=finished.best)


@contextmanager
def _new_run(out: Path) -> Iterator[RunFolder]:
    """Create a run folder; remove its files if an error occurs."""
    with RunFolder.create(out) as folder:
        try:
            yield folder
        except BaseException:
            for name in FILES:
                if (out / name).exists():
                    remove(out / name)
            raise


def _run_id(source: RunFolder, steps: Sequence[int]) -> str:
    """Return a run id of 32 hexadecimal digits that depends on the averaged run and on the steps."""
    return hashlib.sha256(f"{source.run_id} {list(steps)}".encode()).hexdigest()[:32]


def _merged_weights(source: RunFolder, recipe: Any, steps: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the complete weights of the average, and those of the newest checkpoint."""
    model, read = _checkpoint_reader(source, recipe)
    return merge_lora(model, average_tensors(map(read, steps))), merge_lora(model, read(steps[-1]))


def checkpoint_weights(source: RunFolder, step: int) -> dict[str, Tensor]:
    """Return the complete weights of a checkpoint; those of an adapter are merged.

    Raises:
        CheckpointError: the run has not kept this checkpoint, or it is damaged or of another model.
    """
    if step not in (kept := source.checkpoints.steps()):
        found = ", ".join(f"step-{each}" for each in kept) or "none"
        raise CheckpointError(f"{source.path}: expected the checkpoint step-{step}, found {found}; name a kept one")
    source.require_plugins()
    model, read = _checkpoint_reader(source, load_recipe(source.path / RECIPE)[0])
    return merge_lora(model, read(step))


def _checkpoint_reader(source: RunFolder, recipe: Any) -> tuple[nn.Module, Callable[[int], dict[str, Tensor]]]:
    """Return the model of a run with its adapter, and a function that reads the trained weights of a checkpoint."""
    model = build_model(recipe.model)
    if recipe.training.adapter is not None:
        load_base_and_adapt(model, recipe.training.adapter, source)
    expected = {name: x.shape for name, x in trainable_tensors(model).items()}

    def read(step: int) -> dict[str, Tensor]:
        tensors = source.checkpoints.load(step, only=["model"]).groups["model"]
        if (found := {name: x.shape for name, x in tensors.items()}) != expected:
            name = min(name for name in found.keys() | expected if found.get(name) != expected.get(name))
            raise CheckpointError(f"{source.checkpoints.path(step)}: expected the tensors of the run's model, found another {name!r}")
        return tensors

    return model, read


def _evaluate(setup: TrainingSetup, weights: Mapping[str, Tensor]) -> dict[str, float]:
    """Load weights into ``setup.eval_model``; return the validation metrics that need no predictions."""
    own = trainable_tensors(setup.eval_model)
    load_trainable(setup.eval_model, {name: weights[name] for name in own})
    with num_threads_set_to(setup.threads.count):
        return dict(setup.task.evaluate(setup.eval_model, _autocast(setup)))


def _autocast(setup: TrainingSetup) -> torch.autocast:
    dtype = setup.precision.dtype
    return torch.autocast(setup.model.device.type, dtype, enabled=dtype != torch.float32)


def _write_average(setup: TrainingSetup, result: AverageResult) -> TrainingFinished:
    """Write the average, which ``setup.eval_model`` holds, and its validation; return the event that the pages of a run describe."""
    scores, samples = setup.task.predict_validation(setup.eval_model, _autocast(setup), setup.precision)
    metrics, step, folder = {**result.average, **scores}, result.steps[-1], setup.folder
    records = read_metrics_history(folder.metrics)
    seconds = max((float(record["seconds"]) for record in records if record["kind"] == "validation"), default=0.0)
    losses = {"weights": "averaged", "averaged_loss": metrics["loss"], "raw_loss": result.last["loss"]}
    folder.metrics.append({"step": step, "kind": "validation", "best": True, "seconds": seconds, **metrics, **losses, "samples": samples})
    folder.write_tensors(WEIGHTS, setup.eval_model.state_dict(), step)
    return TrainingFinished(step, "max_steps", {"step": step, **metrics}, seconds, weights="averaged")
