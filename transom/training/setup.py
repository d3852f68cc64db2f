"""Set up a run from its recipe: task, model, optimizer, precision, and the facts known before step 1."""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transom.checkpoints.run_files import RECIPE, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import hash_tensors
from transom.config.model_overrides import NO_OVERRIDES, UserOverrides
from transom.config.plugins import PluginRecord, plugins_of
from transom.config.recipe import Recipe, dump_recipe, load_recipe
from transom.config.schema import Schema
from transom.data.reports.report import DataReport
from transom.data.text.text_io import expand_path
from transom.errors import CheckpointError, ConfigError
from transom.files.regular_files import resolve_path
from transom.models.base import Network
from transom.models.build import build_model
from transom.planning.adapters import count_adapter_parameters
from transom.planning.hardware import PeakRates, measure_peak
from transom.planning.memory import check_fits_in_memory
from transom.planning.parameters import count_parameters, position_table_error
from transom.planning.precision import Precision, ProcessPlan, ThreadPlan, choose_precision, choose_threads, plan_processes
from transom.training.finetune import inherit_model_shape, init_from, load_base_and_adapt, merge_model_fields, save_base_weights
from transom.training.lr_schedule import warmup_notes
from transom.training.optimizer import build_optimizer
from transom.training.task_protocol import BuildTask, Task, TaskContext


@dataclass(frozen=True)
class TrainingSetup:
    """A run that is set up.

    Attributes:
        recipe: the recipe with the values chosen during set-up.
        folder: the run folder, open and locked.
        task: the task.
        model: the model in training.
        eval_model: a second model of the same shape for the weights to validate.
        optimizer: optimizer of the model's parameters.
        precision: type of the matrix products, with the reason.
        threads: number of threads, with the reason.
        processes: data-parallel processes and threads per process.
        peak: highest measured FLOP/s of the machine in this precision.
        notes: sentences for the user.
        facts: facts known before the run.
    """

    recipe: Recipe
    folder: RunFolder
    task: Task
    model: Network
    eval_model: Network
    optimizer: torch.optim.Optimizer
    precision: Precision
    threads: ThreadPlan
    processes: ProcessPlan
    peak: float
    notes: tuple[str, ...]
    facts: Mapping[str, Any]


def build_training_setup(
    recipe: Recipe,
    base: Path,
    folder: RunFolder,
    read: BuildTask,
    notify: Callable[[str], None] = lambda _: None,
    user_overrides: UserOverrides = NO_OVERRIDES,
) -> TrainingSetup:
    """Read the data, train or load the tokenizers, build the model, and measure the machine.

    This sets the process's threads and random state; ``planning.process_state`` restores those of the caller.

    Args:
        recipe: the recipe.
        base: folder to which ``data.root`` is relative.
        folder: the run folder; if it holds a recipe, the run is resumed and keeps its choices.
        read: reads the data and builds the task.
        notify: called with short descriptions of the current work.
        user_overrides: fields set by the user; when fine-tuning, only these change the model's shape.

    Raises:
        TransomError: data, recipe and folder contradict each other.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe, shape_notes = _resolve_paths(recipe, base), list[str]()
    if folder.has_recipe:
        recipe = _resume_recipe(recipe, folder, user_overrides)
    elif folder.checkpoints.steps() or (folder.path / WEIGHTS).exists():
        raise CheckpointError(f"{folder.path / RECIPE}: expected the recipe of the resumed run, found none; put it back")
    elif recipe.training.init_from is not None:
        recipe, shape_notes = inherit_model_shape(recipe, Path(recipe.training.init_from), user_overrides)
    precision, threads = choose_precision(recipe.training.precision, device), choose_threads()
    processes = plan_processes(recipe.training.processes, threads, device)
    torch.set_num_threads(threads.count)
    torch.manual_seed(recipe.training.seed)

    task = read(recipe, TaskContext(base, folder, notify, n_ranks=processes.count))
    recipe = task.recipe.with_fields("training", precision=precision.name)
    check_fits_in_memory(count_parameters(recipe.model).total, device)
    if (problem := position_table_error(recipe.model)) is not None:
        raise ConfigError(problem)
    if (adapter := recipe.training.adapter) is not None:
        count_adapter_parameters(recipe.model, adapter)  # refuses maps that are not there
        if recipe.training.init_from is None:
            raise ConfigError("training.adapter: expected a base run to add the adapter to, found none; give one with --init-from")
    notify("measuring the machine")
    peak = measure_peak(device)
    model = build_model(recipe.model).to(device)
    origin = recipe.training.init_from
    init = init_from(model, Path(origin)) if origin is not None and not folder.checkpoints.steps() else None
    eval_model = copy.deepcopy(model).eval()
    task.write(folder)  # only now: what could not begin leaves nothing
    for path in (path for part in recipe.data.test_parts for path in part.paths):
        folder.access_log.record(Path(recipe.data.root) / expand_path(path), "train")  # the data report has read it
    folder.write(RECIPE, dump_recipe(recipe).encode())
    plugins = [plugin.record for plugin in plugins_of(recipe)]
    folder.write_config(recipe.model, _run_id(recipe, task, model, threads, plugins), plugins)
    if adapter is not None:
        if init is not None:
            save_base_weights(model, init.new_tensors, folder)
        load_base_and_adapt(model, adapter, folder)
    return TrainingSetup(
        recipe=recipe,
        folder=folder,
        task=task,
        model=model,
        eval_model=eval_model,
        optimizer=build_optimizer(model, recipe.training.optimizer, precision.dtype),
        precision=precision,
        threads=threads,
        processes=processes,
        peak=peak.flops[precision.dtype],
        notes=(*([init.note] if init else []), *shape_notes, *warmup_notes(recipe.training), *_trainable_notes(recipe, model)),
        facts=_facts(recipe, task.report, precision, threads, processes, peak),
    )


def _facts(
    recipe: Recipe, report: DataReport, precision: Precision, threads: ThreadPlan, processes: ProcessPlan, peak: PeakRates
) -> dict[str, Any]:
    """Return the facts known before the run."""
    return {
        "data": report.to_json(),
        "unit": recipe.UNIT,
        "parameters": count_parameters(recipe.model).total,
        "active_parameters": count_parameters(recipe.model).active,
        "precision": precision.reason,
        "threads": threads.reason,
        "processes": processes.reason,
        "peak_flops": peak.flops[precision.dtype],
        "bandwidth": peak.bandwidth,
        "torch": torch.__version__,
    }


def _trainable_notes(recipe: Recipe, model: Network) -> list[str]:
    """Return a note on the number of trainable parameters of an adapter."""
    if (adapter := recipe.training.adapter) is None:
        return []
    trainable, total = sum(p.numel() for p in model.parameters() if p.requires_grad), count_parameters(recipe.model).total
    return [
        f"{adapter.kind} of rank {adapter.rank} on {', '.join(adapter.target_modules)}: {trainable:,} numbers learn,"
        f" {trainable / total:.2%} of the model's"
        f" {total:,} parameters; the others are kept"
    ]


def _resolve_paths(recipe: Recipe, base: Path) -> Recipe:
    """Make ``data.root`` and ``training.init_from`` absolute, so that the run's recipe does not depend on where it is read."""
    root = str(resolve_path(base / expand_path(recipe.data.root)))
    recipe = recipe.with_fields("data", root=root)
    if (origin := recipe.training.init_from) is None:
        return recipe
    return recipe.with_fields("training", init_from=str(resolve_path(base / expand_path(origin))))


MUTABLE_ON_RESUME = {
    "training": {"max_steps", "max_minutes", "patience", "log_every", "tensorboard"},
    "data": {"root", "train", "valid", "test", "languages"},
}
"""Fields that may change when a run resumes. Files may move: only the hash of their content must stay the same."""


def _run_id(recipe: Recipe, task: Task, model: Network, threads: ThreadPlan, plugins: Sequence[PluginRecord]) -> str:
    """Return a hash of everything that determines a run's bits: recipe, plugins, data, initial weights, threads, PyTorch's version.

    The same training therefore writes the same files, and files of different trainings are distinguished.
    """
    kept = recipe.model_dump(mode="json", exclude=MUTABLE_ON_RESUME)
    facts = [
        kept,
        task.data_hash,
        hash_tensors(model.state_dict()),
        threads.count,
        torch.__version__,
        *(plugin.sha256 for plugin in plugins),
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _resume_recipe(recipe: Recipe, folder: RunFolder, user_overrides: UserOverrides) -> Recipe:
    """Check that the resumed run has this recipe, and fill in what the run chose: precision, origin, vocabulary, classes."""
    folder.require_plugins()
    original = load_recipe(folder.path / RECIPE)[0]
    if original.task != recipe.task:
        raise ConfigError(f"{folder.path}: the run was started with task = {original.task!r}, found {recipe.task!r}; give another --out")
    chosen: dict[str, str | None] = {"precision": original.training.precision} if recipe.training.precision == "auto" else {}
    if recipe.training.init_from is None:
        chosen["init_from"] = original.training.init_from
    if original.training.init_from is not None:
        recipe = merge_model_fields(recipe, original.model, user_overrides)
    data_dependent = (*recipe.model.VOCABULARIES, *recipe.model.FROM_DATA)
    sizes = {name: getattr(original.model, name) for name in data_dependent if not getattr(recipe.model, name)}
    recipe = recipe.with_fields("training", **chosen).with_fields("model", **sizes)
    for part in type(recipe).model_fields:
        old, new = getattr(original, part), getattr(recipe, part)
        if old == new:
            continue
        names = type(new).model_fields if isinstance(new, Schema) else ()
        for name in names:
            if getattr(old, name, None) != getattr(new, name) and name not in MUTABLE_ON_RESUME.get(part, ()):
                raise ConfigError(
                    f"{folder.path}: the run was started with {part}.{name} = {getattr(old, name, None)}, found {getattr(new, name)};"
                    " a resumed run keeps its recipe: change the field back or give another --out"
                )
    return recipe
