"""Set up a training run from its recipe: task, model, precision, and the facts known before step 1."""

import copy
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from transom.checkpoints.run_files import RECIPE, WEIGHTS
from transom.checkpoints.run_folder import RunFolder
from transom.checkpoints.tensors import hash_tensors
from transom.config.model_overrides import NO_OVERRIDES, UserOverrides
from transom.config.parallel import ParallelConfig
from transom.config.plugins import PluginRecord, plugins_of
from transom.config.recipe import Recipe, dump_recipe, load_recipe
from transom.config.schema import Schema
from transom.data.reports.report import DataReport
from transom.data.text.text_io import expand_path
from transom.errors import CheckpointError, ConfigError
from transom.files.regular_files import resolve_path
from transom.models.base import Network
from transom.models.build import build_model
from transom.parallel.processes.collectives import SINGLE_PROCESS
from transom.parallel.processes.torchrun import torchrun_rank
from transom.planning.adapters import count_adapter_parameters
from transom.planning.data_fit import describe_fit, keep_fitted_fields
from transom.planning.disk_space import check_disk_space
from transom.planning.hardware import PeakRates, measure_peak
from transom.planning.layout import check_layout
from transom.planning.memory import check_fits_in_memory, used_memory
from transom.planning.parameters import count_parameters, position_table_error
from transom.planning.precision import Precision, ProcessPlan, ThreadPlan, choose_precision, choose_threads, plan_processes, rank_device
from transom.training.compilation import EAGER_UTILIZATION, REQUESTS, choose_compilation, compilation_problem, describe_choice
from transom.training.finetune import WeightInit, inherit_model_shape, init_from, load_base_and_adapt, merge_model_fields, save_base_weights
from transom.training.lr_schedule import warmup_notes
from transom.training.objectives.auxiliary import auxiliary_objectives
from transom.training.out_of_memory import release_memory
from transom.training.task_protocol import BuildTask, Task, TaskContext


@dataclass(frozen=True)
class TrainingSetup:
    """A training run that is ready for ``train``.

    Attributes:
        recipe: the recipe, with values chosen during set-up filled in, such as precision and vocabulary sizes.
        folder: the run folder, open and locked.
        task: data, losses and metrics of the run.
        model: the model to train.
        eval_model: a copy of the model, into which the weights to validate are loaded.
        precision: dtype of the matrix products, with the reason for the choice.
        threads: number of threads of the whole run, with the reason for the choice.
        processes: number of data-parallel processes, and of threads per process.
        peak: highest measured FLOP/s of matrix products on this machine, in the dtype of ``precision``.
        memory_before: bytes of this process before data and model, of which ``peak_memory`` in metrics.jsonl is the excess.
        notes: sentences to print for the user.
        facts: facts known before step 1, by name: data report, number of parameters, precision, threads and others.
    """

    recipe: Recipe
    folder: RunFolder
    task: Task
    model: Network
    eval_model: Network
    precision: Precision
    threads: ThreadPlan
    processes: ProcessPlan
    peak: float
    memory_before: int
    notes: tuple[str, ...]
    facts: Mapping[str, Any]


def build_training_setup(
    recipe: Recipe,
    base: Path,
    folder: RunFolder,
    read: BuildTask,
    notify: Callable[[str], None] = lambda _: None,
    user_overrides: UserOverrides = NO_OVERRIDES,
    saves: bool = True,
) -> TrainingSetup:
    """Read the data, train or load the tokenizers, build the model, and measure the machine.

    PyTorch's thread count and random state change in this process. Call this function inside
    ``planning.process_state.preserved_process_state`` to restore them.

    Args:
        recipe: recipe of the run.
        base: folder to which a relative ``data.root`` refers.
        folder: the run folder. If it holds a recipe, the run is resumed with the values that were chosen when it started.
        read: reads the data and builds the task.
        notify: called with a short description of each stage, such as "measuring the machine".
        user_overrides: fields set by the user. In fine-tuning only these change the model's shape.
        saves: whether the run will save checkpoints, for which the disk must have room.

    Raises:
        TransomError: data, recipe and run folder contradict each other.
    """
    release_memory(device := rank_device())  # what was freed before would be missing from the peak
    memory_before = used_memory(device)
    recipe, shape_notes = _resolve_paths(recipe, base), list[str]()
    if folder.has_recipe:
        recipe = _resume_recipe(recipe, folder, user_overrides)
    elif folder.checkpoints.steps() or (folder.path / WEIGHTS).exists():
        raise CheckpointError(f"{folder.path / RECIPE}: expected the recipe of the resumed run, found none; restore this file")
    elif recipe.training.init_from is not None:
        recipe, shape_notes = inherit_model_shape(recipe, Path(recipe.training.init_from), user_overrides)
    precision, threads = choose_precision(recipe.training.precision, device), choose_threads()
    if (place := torchrun_rank()) is not None:
        recipe = recipe.model_copy(update={"parallel": recipe.parallel.with_processes(place.size, "torchrun")})
    check_layout(recipe.model, recipe.parallel, recipe.training)
    processes = plan_processes(recipe.parallel, threads, device, by_torchrun=place is not None)
    torch.set_num_threads(threads.count)
    torch.manual_seed(recipe.training.seed)

    own, n_parts = None if folder.has_recipe else user_overrides, recipe.parallel.n_batch_parts
    task = read(recipe, TaskContext(base, folder, notify, n_parts=n_parts, own=own))
    fit_notes = describe_fit(recipe, task.recipe)
    recipe = task.recipe.with_fields("training", precision=precision.name)
    _check_model(recipe, device)
    notify("measuring the machine")
    peak, model = measure_peak(device), build_model(recipe.model).to(device)
    recipe, compile_notes = _choose_compilation(recipe, task, model, device, peak.flops[precision.dtype])
    origin = recipe.training.init_from
    init = init_from(model, Path(origin)) if origin is not None and not folder.checkpoints.steps() else None
    eval_model = copy.deepcopy(model).eval()
    if saves:
        check_disk_space(folder.path, model, recipe.training)
    task.write(folder)  # only now, so that a run that cannot start leaves no files
    for path in (path for part in recipe.data.test_parts for path in part.paths):
        folder.access_log.record(Path(recipe.data.root) / expand_path(path), "train")  # the data report has read it
    folder.write(RECIPE, dump_recipe(recipe).encode())
    plugins = [plugin.record for plugin in plugins_of(recipe)]
    folder.write_config(recipe.model, _run_id(recipe, task, model, threads, plugins), plugins)
    _add_adapter(recipe, model, init, folder)
    return TrainingSetup(
        recipe=recipe,
        folder=folder,
        task=task,
        model=model,
        eval_model=eval_model,
        precision=precision,
        threads=threads,
        processes=processes,
        peak=peak.flops[precision.dtype],
        memory_before=memory_before,
        notes=(*([init.note] if init else []), *shape_notes, *fit_notes, *compile_notes, *_model_notes(recipe, model)),
        facts=_facts(recipe, task.report, precision, threads, processes, peak),
    )


def _choose_compilation(recipe: Recipe, task: Task, model: Network, device: torch.device, peak: float) -> tuple[Recipe, list[str]]:
    """Return the recipe with the choice of ``training.compile``, and a note if passes are or could be compiled; ``peak`` is in FLOP/s."""
    forecasts = list[float]()

    def forecast() -> float:  # as if all steps were as large as the first one
        flops = sum(map(task.flops, next(task.loader.batches_from(0))[1]))
        seconds = recipe.training.max_steps * flops / (EAGER_UTILIZATION * peak)
        forecasts.append(min(seconds, 60 * (recipe.training.max_minutes or math.inf)))
        return forecasts[0]

    chosen = choose_compilation(recipe.model, recipe.training, recipe.parallel, device, forecast)
    if chosen:
        observed = [*task.objective(model).sites, *(site for each in auxiliary_objectives(model, SINGLE_PROCESS) for site in each.sites)]
        if observed and recipe.training.compile != "auto":
            expected = f"expected a loss of the logits alone, found one that reads {observed[0]}"
            raise ConfigError(f"training.compile = {recipe.training.compile!r}: {expected}; set training.compile to 'off'")
        chosen = not observed
    kind = "on" if recipe.training.compile == "auto" else recipe.training.compile
    return recipe.with_fields("training", compile=kind if chosen else "off"), describe_choice(chosen, *forecasts)


def _add_adapter(recipe: Recipe, model: Network, init: WeightInit | None, folder: RunFolder) -> None:
    """Add the adapter that the recipe sets, if any, to the model; its base weights are saved when the run starts."""
    if (adapter := recipe.training.adapter) is not None:
        if init is not None:
            save_base_weights(model, init.new_tensors, folder)
        load_base_and_adapt(model, adapter, folder)


def _check_model(recipe: Recipe, device: torch.device) -> None:
    """Check that the model fits into memory and that its positions and its adapter are possible.

    Raises:
        TransomError: one of them is not.
    """
    check_fits_in_memory(count_parameters(recipe.model).total, device)
    if (problem := position_table_error(recipe.model)) is not None:
        raise ConfigError(problem)
    if (adapter := recipe.training.adapter) is not None:
        count_adapter_parameters(recipe.model, adapter)  # raises ConfigError for maps that the model lacks
        if recipe.training.init_from is None:
            raise ConfigError("training.adapter: expected a base run to add the adapter to, found none; give one with --init-from")


def _facts(
    recipe: Recipe, report: DataReport, precision: Precision, threads: ThreadPlan, processes: ProcessPlan, peak: PeakRates
) -> dict[str, Any]:
    """Return the facts known before step 1, by name."""
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


def _model_notes(recipe: Recipe, model: Network) -> list[str]:
    """Return notes on the warmup and, if the recipe sets an adapter, on the number of trainable parameters."""
    if (adapter := recipe.training.adapter) is None:
        return warmup_notes(recipe.training)
    trainable, total = sum(p.numel() for p in model.parameters() if p.requires_grad), count_parameters(recipe.model).total
    return [
        *warmup_notes(recipe.training),
        f"{adapter.kind} of rank {adapter.rank} on {', '.join(adapter.target_modules)}: {trainable:,} parameters are trained,"
        f" {trainable / total:.2%} of the model's"
        f" {total:,} parameters; the others are frozen",
    ]


def _resolve_paths(recipe: Recipe, base: Path) -> Recipe:
    """Make ``data.root`` and ``training.init_from`` absolute, so that the recipe in the run folder refers to the same files."""
    root = str(resolve_path(base / expand_path(recipe.data.root)))
    recipe = recipe.with_fields("data", root=root)
    if (origin := recipe.training.init_from) is None:
        return recipe
    return recipe.with_fields("training", init_from=str(resolve_path(base / expand_path(origin))))


_NOT_IN_RUN_ID = {
    "training": {
        "activation_checkpointing",
        "max_steps",
        "max_minutes",
        "patience",
        "log_every",
        "digest_every",
        "tensorboard",
        "checkpoint_minutes",
        "fit_to_data",
        "keep_checkpoints",
    },
    "data": {"root", "train", "valid", "test", "languages", "min_valid"},
}
"""Recipe fields, by table, that do not determine a run's steps."""

MUTABLE_ON_RESUME = {
    "training": _NOT_IN_RUN_ID["training"] | {"compile", "validate_every", "validate_bleu", "validate_samples", "checkpoint_every"},
    "data": _NOT_IN_RUN_ID["data"],
    "parallel": {*ParallelConfig.AXES},
}
"""Recipe fields, by table, that may change when a run is resumed. Data files may move, but their content must not change."""


def _run_id(recipe: Recipe, task: Task, model: Network, threads: ThreadPlan, plugins: Sequence[PluginRecord]) -> str:
    """Return a hash of what determines a run's results bit for bit: recipe, plugins, data, initial weights, threads, PyTorch version.

    A repeated run therefore writes the same files, and files of different runs have different IDs.
    """
    kept = recipe.model_dump(mode="json", exclude=_NOT_IN_RUN_ID)
    if recipe.training.dropout_rng == "generator":  # as in runs from before the field, which keep their ID
        del kept["training"]["dropout_rng"]
    if recipe.training.compile not in REQUESTS:  # likewise
        del kept["training"]["compile"]
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
    """Fill in the values chosen when the resumed run started, such as precision and vocabulary sizes.

    Raises:
        ConfigError: another field of ``recipe`` differs from the run's recipe.
    """
    folder.require_plugins()
    original = load_recipe(folder.path / RECIPE)[0]
    if original.task != recipe.task:
        raise ConfigError(
            f"{folder.path}: expected task = {original.task!r} as in the resumed run, found {recipe.task!r}; give another --out"
        )
    chosen: dict[str, str | None] = {"precision": original.training.precision} if recipe.training.precision == "auto" else {}
    if recipe.training.compile == "auto":  # a run from before the field has never been compiled
        problem = compilation_problem(recipe.model, recipe.training, recipe.parallel, rank_device())
        chosen["compile"] = original.training.compile if original.training.compile in REQUESTS and problem is None else "off"
    if "dropout_rng" not in recipe.training.model_fields_set:
        chosen["dropout_rng"] = original.training.dropout_rng
    if recipe.training.init_from is None:
        chosen["init_from"] = original.training.init_from
    if original.training.init_from is not None:
        recipe = merge_model_fields(recipe, original.model, user_overrides)
    data_dependent = (*recipe.model.VOCABULARIES, *recipe.model.FROM_DATA)
    recipe = keep_fitted_fields(recipe, original, user_overrides)
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
