"""Everything a run needs, from a recipe: task, model, optimizer, precision, and what is known before step 1."""

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
from transom.checkpoints.tensors import digest
from transom.config.brick import Schema
from transom.config.finetune import NOTHING_ASKED, Asked
from transom.config.plugins import PluginRecord, plugins_of
from transom.config.recipe import Recipe, dump_recipe, load_recipe
from transom.data.reports.report import Report
from transom.data.text.text import expanded
from transom.errors import CheckpointError, ConfigError
from transom.files.regular import resolved
from transom.models.build import build_model
from transom.models.network import Network
from transom.planning.adapters import count_adapters
from transom.planning.machine import MachinePeak, measure_peak
from transom.planning.memory import refuse_larger_than_memory
from transom.planning.parameters import count_parameters, excess_positions
from transom.planning.precision import Precision, Processes, Threads, choose_precision, choose_threads, share_processors
from transom.training.optimizer import build_optimizer
from transom.training.schedule import too_short
from transom.training.start import adapt_base, keep_base, laid_over, shaped_like, start_from
from transom.training.task import Reader, ReadTask, Task


@dataclass(frozen=True)
class Parts:
    """A run, set up.

    Attributes:
        recipe: as resolved, with all that the run chose itself.
        folder: the run folder, open and locked.
        task: what is learnt.
        model: in training.
        validated: a second model of the same shape, which holds the weights that are validated.
        optimizer: of the model's parameters.
        precision: type of the matrix products, with the reason.
        threads: of the machine.
        processes: that share each batch.
        peak: the machine's best measured FLOP/s in that type.
        notes: sentences on the set-up that a person should read.
        facts: what is known before the run.
    """

    recipe: Recipe
    folder: RunFolder
    task: Task
    model: Network
    validated: Network
    optimizer: torch.optim.Optimizer
    precision: Precision
    threads: Threads
    processes: Processes
    peak: float
    notes: tuple[str, ...]
    facts: Mapping[str, Any]


def set_up(
    recipe: Recipe,
    base: Path,
    folder: RunFolder,
    read: ReadTask,
    tell: Callable[[str], None] = lambda _: None,
    asked: Asked = NOTHING_ASKED,
) -> Parts:
    """Read the data, make or load the tokenizers, build the model, and measure the machine.

    The process's threads and random state are then the run's; ``planning.process.training_process`` gives the caller's back.

    Args:
        recipe: what to train.
        base: folder that ``data.root`` is relative to.
        folder: the run folder, created; one that holds a recipe is a run to go on with, and keeps its choices.
        read: reads the data and makes the recipe's task of them.
        tell: is told what is being done, in a few words.
        asked: what a person set of the recipe; of a run that starts from another one nothing else changes the model's shape.

    Raises:
        TransomError: data, recipe and folder do not fit together.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe, shape = _resolve(recipe, base), list[str]()
    if folder.holds_recipe:
        recipe = _as_begun(recipe, folder, asked)
    elif folder.checkpoints.steps() or (folder.path / WEIGHTS).exists():
        raise CheckpointError(f"{folder.path / RECIPE}: expected the recipe of the run to go on with, found none; put it back")
    elif recipe.training.start_from is not None:
        recipe, shape = shaped_like(recipe, Path(recipe.training.start_from), asked)
    precision, threads = choose_precision(recipe.training.precision, device), choose_threads()
    processes = share_processors(recipe.training.processes, threads, device)
    torch.set_num_threads(threads.count)
    torch.manual_seed(recipe.training.seed)

    task = read(recipe, Reader(base, folder, tell, n_ranks=processes.count))
    recipe = task.recipe.with_fields("training", precision=precision.name)
    refuse_larger_than_memory(count_parameters(recipe.model).total, device)
    if (problem := excess_positions(recipe.model)) is not None:
        raise ConfigError(problem)
    if (adapter := recipe.training.adapter) is not None:
        count_adapters(recipe.model, adapter)  # refuses maps that are not there
        if recipe.training.start_from is None:
            raise ConfigError("training.adapter: expected a run whose weights it is added to, found none; name one with --from")
    tell("measuring the machine")
    peak = measure_peak(device)
    model = build_model(recipe.model).to(device)
    origin = recipe.training.start_from
    taken = start_from(model, Path(origin)) if origin is not None and not folder.checkpoints.steps() else None
    validated = copy.deepcopy(model).eval()
    task.write(folder)  # only now: what could not begin leaves nothing
    for path in (path for part in recipe.data.test_parts for path in part.paths):
        folder.ledger.record(Path(recipe.data.root) / expanded(path), "train")  # the data report told of it
    folder.write(RECIPE, dump_recipe(recipe).encode())
    plugins = [plugin.record for plugin in plugins_of(recipe)]
    folder.write_config(recipe.model, _run_id(recipe, task, model, threads, plugins), plugins)
    if adapter is not None:
        if taken is not None:
            keep_base(model, taken.fresh, folder)
        adapt_base(model, adapter, folder)
    return Parts(
        recipe=recipe,
        folder=folder,
        task=task,
        model=model,
        validated=validated,
        optimizer=build_optimizer(model, recipe.training.optimizer, precision.dtype),
        precision=precision,
        threads=threads,
        processes=processes,
        peak=peak.flops[precision.dtype],
        notes=(*([taken.note] if taken else []), *shape, *too_short(recipe.training), *_learning(recipe, model)),
        facts=_facts(recipe, task.report, precision, threads, processes, peak),
    )


def _facts(
    recipe: Recipe, report: Report, precision: Precision, threads: Threads, processes: Processes, peak: MachinePeak
) -> dict[str, Any]:
    """Gather what is known before the run."""
    return {
        "data": report.to_json(),
        "counted": recipe.COUNTED,
        "parameters": count_parameters(recipe.model).total,
        "active_parameters": count_parameters(recipe.model).active,
        "precision": precision.reason,
        "threads": threads.reason,
        "processes": processes.reason,
        "peak_flops": peak.flops[precision.dtype],
        "bandwidth": peak.bandwidth,
        "torch": torch.__version__,
    }


def _learning(recipe: Recipe, model: Network) -> list[str]:
    """Say how much of a model learns, where not all of it does."""
    if (adapter := recipe.training.adapter) is None:
        return []
    learned, total = sum(p.numel() for p in model.parameters() if p.requires_grad), count_parameters(recipe.model).total
    return [
        f"{adapter.kind} of rank {adapter.rank} on {', '.join(adapter.on)}: {learned:,} numbers learn, {learned / total:.2%} of the model's"
        f" {total:,} parameters; the others are kept"
    ]


def _resolve(recipe: Recipe, base: Path) -> Recipe:
    """Make ``data.root`` and ``training.start_from`` absolute, so that the run's recipe means the same wherever it is read."""
    root = str(resolved(base / expanded(recipe.data.root)))
    recipe = recipe.with_fields("data", root=root)
    if (origin := recipe.training.start_from) is None:
        return recipe
    return recipe.with_fields("training", start_from=str(resolved(base / expanded(origin))))


MAY_CHANGE = {
    "training": {"max_steps", "max_minutes", "patience", "log_every", "tensorboard"},
    "data": {"root", "train", "valid", "test", "languages"},
}
"""Fields that a resumed run may change; any other would make another run of it. Files may move: what counts is the hash of their pairs."""


def _run_id(recipe: Recipe, task: Task, model: Network, threads: Threads, plugins: Sequence[PluginRecord]) -> str:
    """Return an id for all that decides a run's bits: recipe, plugins, data, initial weights, threads and PyTorch's version.

    So the same training leaves the same files, and any other one's files are told apart.
    """
    kept = recipe.model_dump(mode="json", exclude=MAY_CHANGE)
    facts = [kept, task.data, digest(model.state_dict()), threads.count, torch.__version__, *(plugin.sha256 for plugin in plugins)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _as_begun(recipe: Recipe, folder: RunFolder, asked: Asked) -> Recipe:
    """Check that a run to go on with has this recipe; take over what it began with: precision, origin, vocabulary, classes."""
    folder.require_plugins()
    begun = load_recipe(folder.path / RECIPE)[0]
    if begun.task != recipe.task:
        raise ConfigError(f"{folder.path}: the run was begun with task = {begun.task!r}, found {recipe.task!r}; give another --out")
    chosen: dict[str, str | None] = {"precision": begun.training.precision} if recipe.training.precision == "auto" else {}
    if recipe.training.start_from is None:
        chosen["start_from"] = begun.training.start_from
    if begun.training.start_from is not None:
        recipe = laid_over(recipe, begun.model, asked)
    found_out = (*recipe.model.VOCABULARIES, *recipe.model.FROM_DATA)
    sizes = {name: getattr(begun.model, name) for name in found_out if not getattr(recipe.model, name)}
    recipe = recipe.with_fields("training", **chosen).with_fields("model", **sizes)
    for part in type(recipe).model_fields:
        old, new = getattr(begun, part), getattr(recipe, part)
        if old == new:
            continue
        names = type(new).model_fields if isinstance(new, Schema) else ()
        for name in names:
            if getattr(old, name, None) != getattr(new, name) and name not in MAY_CHANGE.get(part, ()):
                raise ConfigError(
                    f"{folder.path}: the run was begun with {part}.{name} = {getattr(old, name, None)}, found {getattr(new, name)};"
                    " a resumed run keeps its recipe: change the field back or give another --out"
                )
    return recipe
